"""The best implementation for a setting, from recorded runs: the setting itself where it was measured, else the nearest ones, which
are shown as what they are.
"""
import fnmatch
import json
import math

from compare import problems, report, runner

NEAREST = 3
# What a step along an axis counts, beside a factor of two in a size, which counts 1.
UNLIKE = {"op": 6.0, "dtype": 3.0, "layout": 3.0, "pattern": 4.0}
CLOSE = {frozenset(("fp16", "bf16")): 0.25}  # the same tensor cores at the same rate


def read(paths, explicit=True):
    """([(path, record)], [paths of files that are none]); such a file is an error when it was named explicitly."""
    records, others = [], []
    for path in paths:
        try:
            records.append((path, runner.read(path)))
        except ValueError:
            if explicit:
                raise
            others.append(path)
    return records, others


def distance(wanted, have):
    """Of a recorded setting from the axes asked for: 0 when they agree. Infinite for another kind."""
    if wanted["kind"] != have["kind"]:
        return math.inf
    total = 0.0
    for axis, value in wanted.items():
        other = have.get(axis)
        if value == other:
            continue
        if axis == "shape":
            total += sum(abs(math.log2(x / y)) for x, y in zip(problems.blocks(wanted), problems.blocks(have)))
        elif isinstance(value, int):
            total += abs(math.log2(value / other))
        else:
            total += CLOSE.get(frozenset((value, other)), UNLIKE[axis])
    return total


def choose(cell, wanted, unwanted, by):
    """What a cell says: the best, the next, the floor. None when nothing right was measured among those wanted."""
    def asked(name):
        return any(fnmatch.fnmatchcase(name, g) for g in wanted) and not any(fnmatch.fnmatchcase(name, g) for g in unwanted)
    value = report.ms if by == "time" else report.energy
    ranked = sorted((value(cell, n), n) for n in cell["results"] if asked(n) and value(cell, n) is not None)
    if not ranked:
        return None
    best, name = ranked[0]
    result = cell["results"][name]
    out = {"setting": cell["setting"], "best": name, "ms": result["ms"], "floor_ms": cell["floor_ms"], "bound": cell["bound"],
           "over_floor": result["ms"] / cell["floor_ms"], "error": result.get("error_frobenius"),
           "net_mj": report.energy(cell, name), "next": None, "next_over_best": None,
           "passed_over": {n: r["verdict"] for n, r in cell["results"].items()
                           if asked(n) and r["verdict"] in ("wrong", "failed", "left out")}}
    if len(ranked) > 1:
        out["next"], out["next_over_best"] = ranked[1][1], ranked[1][0] / best
    return out


def answer(wanted, records, names=("*",), unwanted=(), by="time"):
    """{"asked", "exact": choices of recorded settings that have every axis asked for, "nearest": else those that come near}."""
    found = []
    for path, data in records:
        for cell in data["cells"]:
            away = distance(wanted, cell["setting"])
            choice = choose(cell, names, unwanted, by) if math.isfinite(away) else None
            if choice:
                meta = data["runs"][cell["run"]]["meta"]
                choice.update(distance=away, file=path, **{k: meta.get(k) for k in ("date", "gpu", "commit")})
                found.append(choice)
    found.sort(key=lambda c: c["distance"])
    exact = latest([c for c in found if c["distance"] == 0])
    return {"asked": wanted, "exact": exact, "nearest": [] if exact else found[:NEAREST]}


def latest(choices):
    """One choice a setting and GPU, the one recorded last."""
    kept = {}
    for c in sorted(choices, key=lambda c: c["date"] or ""):
        kept[problems.key(c["setting"]), c["gpu"]] = c
    return list(kept.values())


def differing(wanted, have):
    return ", ".join(f"{axis} {have[axis]} instead of {value}" for axis, value in wanted.items() if have[axis] != value)


def words(choice, by):
    first = f"{choice['best']}: {choice['ms']:.4g} ms, {choice['over_floor']:.2f} times the floor ({choice['bound']})"
    if choice["net_mj"] is not None:
        first += f", {choice['net_mj']:.4g} mJ a call net"
    unit = "time" if by == "time" else "energy"
    first += (f"; next is {choice['next']} at {choice['next_over_best']:.2f} times the {unit}" if choice["next"]
              else "; nothing else was measured")
    lines = [problems.text(choice["setting"]), f"  {first}"]
    if choice["passed_over"]:
        lines.append("  not counted: " + ", ".join(f"{n} ({v})" for n, v in choice["passed_over"].items()))
    lines.append(f"  recorded {choice['date']} on {choice['gpu']}, commit {str(choice['commit'])[:12]}, {choice['file']}")
    return lines


def as_text(answers, by="time"):
    lines = []
    for a in answers:
        for choice in a["exact"]:
            lines += words(choice, by)
        if a["exact"]:
            continue
        if not a["nearest"]:
            lines.append(f"{problems.text(a['asked'])}: nothing of this kind is recorded")
            continue
        lines.append(f"{problems.text(a['asked'])}: not recorded; the nearest settings that are:")
        for choice in a["nearest"]:
            first, *rest = words(choice, by)
            lines += [f"  {first} ({differing(a['asked'], choice['setting'])})"] + [f"  {r}" for r in rest]
    return "\n".join(lines)


def as_json(answers):
    return json.dumps(answers, indent=1)
