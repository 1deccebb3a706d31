"""Markdown and a summary of a record of bench/compare. Takes the JSON alone."""
import statistics

import table
from compare import problems, runner
from suite import geometric_mean

OURS = "splat"


def kinds_of(data):
    return [k for k in problems.KINDS if any(c["setting"]["kind"] == k for c in data["cells"])]


def cells_of(data, kind):
    return [c for c in data["cells"] if c["setting"]["kind"] == kind]


def names_of(cells):
    """Implementations that have a result that is not "unsupported" in some cell, ours first."""
    names = dict.fromkeys(n for c in cells for n, r in c["results"].items() if r["verdict"] != "unsupported")
    return sorted(names, key=lambda n: n != OURS)


def ms(cell, name):
    r = cell["results"].get(name, {})
    return r.get("ms") if r.get("verdict") == "ok" else None


def energy(cell, name, which="net_mj"):
    r = cell["results"].get(name, {})
    return r.get("energy", {}).get(which) if r.get("verdict") == "ok" else None


def best_peer(cell, value=ms):
    """(name, value) of the least among the others, or (None, None)."""
    right = {n: value(cell, n) for n in cell["results"] if n != OURS}
    right = {n: v for n, v in right.items() if v is not None}
    name = min(right, key=right.get) if right else None
    return name, right.get(name)


def ratio(a, b):
    return a / b if a and b else None


# ---- tables ----


def short(setting):
    return problems.text({k: v for k, v in setting.items() if k != "kind"})


def time_cell(cell, name):
    result = cell["results"].get(name)
    if result is None or result["verdict"] == "unsupported":
        return "-"
    if result["verdict"] != "ok":
        return result["verdict"]
    words = f"{result['ms']:.4g}" + ("*" if result.get("run", cell["run"]) != cell["run"] else "")
    return f"**{words}**" if name == cell.get("best") else words


def time_table(cells):
    names = names_of(cells)
    header = ["setting", "floor ms", "bound"] + names + [f"{OURS} / floor", f"best peer / {OURS}"]
    rows = [[short(c["setting"]), f"{c['floor_ms']:.4g}" if "floor_ms" in c else "-", c.get("bound", "-")]
            + [time_cell(c, n) for n in names]
            + [table.number(ratio(ms(c, OURS), c.get("floor_ms")), 2), table.number(ratio(best_peer(c)[1], ms(c, OURS)), 2)]
            for c in cells]
    return table.table(header, rows)


def energy_table(cells):
    """Empty when no energy was measured."""
    cells = [c for c in cells if any("net_mj" in r.get("energy", {}) for r in c["results"].values())]
    if not cells:
        return ""
    names = [n for n in names_of(cells) if any(energy(c, n) is not None for c in cells)]

    def words(c, n):
        net, gross = energy(c, n), energy(c, n, "gross_mj")
        return "-" if net is None else f"{net:.4g} ({gross:.4g})"
    rows = [[short(c["setting"])] + [words(c, n) for n in names]
            + [table.number(ratio(energy(c, OURS), best_peer(c, energy)[1]), 2)] for c in cells]
    return ("Energy: mJ a call, net of idle (gross).\n\n"
            + table.table(["setting"] + names + [f"{OURS} / best peer"], rows) + "\n")


def notes(cells):
    """What failed, was wrong or is not supported, each reason once with the number of its settings and one of them."""
    seen = {}
    for c in cells:
        for name, r in c["results"].items():
            if r["verdict"] in ("wrong", "failed", "unsupported"):
                seen.setdefault((r["verdict"], name, r.get("reason", "")[:160]), []).append(short(c["setting"]))
    order = {"wrong": 0, "failed": 1, "unsupported": 2}
    return "\n".join(f"- {name} {verdict} ({len(where)} settings, as {where[0]}): {reason}"
                     for (verdict, name, reason), where in sorted(seen.items(), key=lambda item: order[item[0][0]]))


def run_lines(data):
    lines = []
    for number, run in enumerate(data["runs"]):
        rates = run["rates"]
        lines.append(table.head(f"Comparison, run {number + 1}", run))
        if rates:
            lines.append("Measured in this run: matrix product " + ", ".join(
                f"{v / 1e12:.1f} TFLOP/s {d}" for d, v in rates["matmul_flops"].items())
                + f"; copy {rates['copy_bytes'] / 1e12:.2f} TB/s.\n")
    return lines


def markdown(data):
    parts = run_lines(data)
    parts.append("Milliseconds a call, medians; the best is bold. * measured in an earlier run than the row's others.\n")
    parts.append(summary(data) + "\n")
    for kind in kinds_of(data):
        cells = cells_of(data, kind)
        parts.append(f"### {kind}: {problems.KINDS[kind].summary}\n\n{time_table(cells)}\n")
        parts += [text for text in (energy_table(cells), notes(cells)) if text]
    if data.get("left_out"):
        parts.append(f"\nThe budget was spent before: {runner.few(data['left_out'])}.")
    return "\n".join(parts) + "\n"


# ---- summary ----


def groups(kind, cells):
    """{words: cells} over which the figures are summed up: kinds of shape, each dtype and layout."""
    out = {}
    for c in cells:
        s = c["setting"]
        words = [kind] + [s[a] for a in ("op", "dtype", "layout") if a in s]
        if kind == "kron":
            words.append("d = 1" if problems.blocks(s)[3] == 1 else "d > 1")
        out.setdefault(" ".join(words), []).append(c)
    return out


def figures(cells):
    """The numbers of one group; None where nothing gives them."""
    ratios = [r for r in (ratio(best_peer(c)[1], ms(c, OURS)) for c in cells) if r]
    floors = [r for r in (ratio(ms(c, OURS), c.get("floor_ms")) for c in cells) if r]
    peers = [r for r in (ratio(best_peer(c)[1], c.get("floor_ms")) for c in cells) if r]
    saved = [r for r in (ratio(energy(c, OURS), best_peer(c, energy)[1]) for c in cells) if r]
    fastest = [c["best"] for c in cells if c.get("best")]
    return {"cells": len(cells), "compared": len(ratios),
            "speedup_median": statistics.median(ratios) if ratios else None, "speedup_geomean": geometric_mean(ratios),
            "speedup_least": min(ratios, default=None), "ours_over_floor": geometric_mean(floors),
            "peer_over_floor": geometric_mean(peers), "energy_median": statistics.median(saved) if saved else None,
            "fastest": {n: fastest.count(n) for n in sorted(set(fastest), key=fastest.count, reverse=True)}}


def summary(data):
    rows = []
    for kind in kinds_of(data):
        for words, cells in groups(kind, cells_of(data, kind)).items():
            f = figures(cells)
            rows.append([words, f["cells"], ", ".join(f"{n} {k}" for n, k in f["fastest"].items()) or "-"]
                        + [table.number(f[k], 2) for k in ("peer_over_floor", "ours_over_floor", "speedup_median",
                                                           "speedup_geomean", "speedup_least", "energy_median")])
    header = ["group", "settings", "fastest in", "best peer / floor", f"{OURS} / floor", f"best peer / {OURS}: median",
              "geometric mean", "least", f"energy {OURS} / best peer"]
    return table.table(header, rows)
