"""Runs every chosen implementation on every chosen problem and keeps the record.

The engine (engine.Engine on a GPU; tests use a stand-in) measures; this module decides what is run, in what order, when the
budget is spent and what becomes of errors:

- the implementations of one problem are measured together, in alternation;
- an error belongs to its implementation and setting, never to the run; a lost device ends the process (DeviceLost);
- after `budget` seconds nothing is begun, and what was left out is listed;
- the record is rewritten after each problem, whole or not at all; a run into a folder that has one continues it.

compare.json: {"kind": "compare", "runs": [{"meta", "setup", "rates"}], "cells": [cell], "left_out": [words]}.
A cell is one problem: "setting", "run" (index into runs), "sets", "rotating_bytes", "pairs", "density", "flops", "bytes", "floor_ms",
"bound", "results": {implementation: result}, "best".
A result has a "verdict" (ok, wrong: beyond the tolerance, unsupported, failed, left out), with a "reason" where it is not ok. Those
that ran have "error_frobenius", "error_max", "first_call_s" (packing and compiling included), "allocations" a call (and
"allocations_of_bmm" where torch.bmm makes some with nothing to copy); measured ones "ms" (median), "min_ms", "max_ms", "samples",
"method" and "energy". One that an earlier run into the folder measured, and this one was not asked for, has that "run".
"""
import dataclasses
import json
import os
import sys
import time

import record
from compare import problems, registry

FINAL = ("ok", "wrong", "unsupported", "failed")
RECORD, CURRENT = "compare.json", "current.json"


class DeviceLost(Exception):
    """Nothing more can be measured in this process."""


@dataclasses.dataclass
class Options:
    out: str                 # folder
    wanted: tuple = ("*",)   # globs of implementations
    unwanted: tuple = ()
    density: tuple = None    # (least, most) share of allowed pairs
    budget: float = float("inf")  # seconds
    energy: bool = False
    setup: dict = dataclasses.field(default_factory=dict)  # recorded as it is


def read(path):
    """A record; ValueError when the file holds something else."""
    with open(path, encoding="utf-8") as file:
        try:
            data = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    if not isinstance(data, dict) or data.get("kind") != "compare":
        raise ValueError(f"{path}: its kind is {data.get('kind') if isinstance(data, dict) else None!r}, not 'compare'")
    return data


def load(folder):
    path = os.path.join(folder, RECORD)
    return read(path) if os.path.exists(path) else {"kind": "compare", "runs": [], "cells": []}


def save(folder, data):
    record.write(os.path.join(folder, RECORD), data)


def cell_of(data, setting):
    return next((c for c in data["cells"] if c["setting"] == setting), None)


def replace_cell(data, cell):
    data["cells"] = [c for c in data["cells"] if c["setting"] != cell["setting"]] + [cell]


def done(cell, names, energy=False):
    """Whether every one of these implementations has its final word in the cell, and its energy where that is wanted."""
    results = [cell["results"].get(n, {}) for n in names] if cell else [{}]
    return all(r.get("verdict") in FINAL and (not energy or r["verdict"] != "ok" or "energy" in r) for r in results)


def few(words, most=6):
    """A list in a sentence, cut short where it is long."""
    rest = len(words) - most
    return "; ".join(words[:most]) + (f"; and {rest} more (left_out in {RECORD})" if rest > 0 else "")


def best(results, value=lambda r: r["ms"]):
    """The name with the least value among those that are right, or None."""
    right = {n: value(r) for n, r in results.items() if r["verdict"] == "ok"}
    right = {n: v for n, v in right.items() if v is not None}
    return min(right, key=right.get) if right else None


class Progress:
    """One line that is overwritten, on a terminal; silent elsewhere."""

    def __init__(self, stream=None):
        self.stream = stream or sys.stderr
        self.shown = self.stream.isatty()

    def __call__(self, words):
        if self.shown:
            width = max(20, os.get_terminal_size(self.stream.fileno()).columns - 1)
            print(f"\r\033[K{words[:width]}", end="", file=self.stream, flush=True)

    def clear(self):
        self("")


class Runner:
    """began: when, by this clock, the budget began to be spent; default now."""

    def __init__(self, engine, options, clock=time.monotonic, say=print, progress=None, began=None):
        self.engine, self.options, self.clock, self.say = engine, options, clock, say
        self.progress = progress or Progress()
        self.began = clock() if began is None else began
        self.data, self.left_out, self.run_index = load(options.out), [], None
        self.position = ""
        self.outside = 0  # settings whose density is not asked for

    def over(self):
        return self.clock() - self.began > self.options.budget

    # ---- the run ----

    def run(self, settings, same_run=False):
        """Measures the settings that the record does not hold yet; same_run goes on with the record's last run instead of a
        new one. Returns the record."""
        todo = [s for s in settings if not done(cell_of(self.data, s), self.names(s), self.options.energy)]
        if len(todo) < len(settings):
            self.say(f"{len(settings) - len(todo)} of {len(settings)} problems are in {self.options.out} already")
        if todo:
            self.begin(sorted({s["dtype"] for s in todo}), same_run)
        for number, setting in enumerate(todo):
            self.position = f"[{number + 1}/{len(todo)}] {problems.text(setting)}"
            if self.over():
                self.left_out.append(problems.text(setting))
                continue
            cell = self.problem(setting)
            if cell is None:
                self.outside += 1
                continue
            replace_cell(self.data, cell)
            self.progress.clear()
            self.say(line(cell))
            self.save()
        self.finish()
        return self.data

    def begin(self, dtypes, same_run):
        if same_run and self.data["runs"]:
            self.run_index = len(self.data["runs"]) - 1
        else:
            self.data["runs"].append({"meta": self.engine.describe(), "setup": self.options.setup, "rates": {}})
            self.run_index = len(self.data["runs"]) - 1
        run = self.data["runs"][self.run_index]
        missing = [d for d in dtypes if d not in run["rates"].get("matmul_flops", {})]
        if missing:
            self.progress(f"rates of {', '.join(missing)}")
            rates = self.engine.rates(missing)
            known = run["rates"].setdefault("matmul_flops", {})
            known.update(rates["matmul_flops"])
            run["rates"]["copy_bytes"] = rates["copy_bytes"]
            self.progress.clear()
            self.say("measured in this run: matrix products at " + ", ".join(
                f"{known[d] / 1e12:.1f} TFLOP/s {d}" for d in dtypes) + f"; copy at {rates['copy_bytes'] / 1e12:.2f} TB/s")
        self.save()

    def finish(self):
        self.progress.clear()
        if self.run_index is not None:
            self.data["runs"][self.run_index]["seconds"] = self.clock() - self.began
        self.data["left_out"] = self.left_out
        self.save()
        try:
            os.remove(os.path.join(self.options.out, CURRENT))
        except FileNotFoundError:
            pass
        if self.outside:
            least, most = self.options.density
            self.say(f"{self.outside} settings have masks outside the density of {least:g} to {most:g}")
        if self.left_out:
            self.say(f"the budget of {self.options.budget:.0f} s was spent before: {few(self.left_out)}")

    def save(self):
        save(self.options.out, self.data)

    def names(self, setting):
        return [i.name for i in registry.select(setting["kind"], self.options.wanted, self.options.unwanted)]

    def now(self, setting, implementation, stage):
        """Shown, and left in a file: should this process die or hang, its parent knows where."""
        self.progress(f"{self.position}: {implementation or ''} {stage}")
        record.write(os.path.join(self.options.out, CURRENT),
                     {"setting": setting, "implementation": implementation, "stage": stage, "since": time.time()})

    # ---- one problem ----

    def problem(self, setting):
        """The cell, or None when the mask's density is not asked for."""
        cell, old = {"setting": setting, "run": self.run_index, "results": {}}, cell_of(self.data, setting)
        implementations = registry.select(setting["kind"], self.options.wanted, self.options.unwanted)
        before, names = (old or {"results": {}})["results"], [i.name for i in implementations]
        fatal = {n: r for n, r in before.items() if r.get("fatal")}  # what killed a process once is not tried again
        cell["results"].update({n: {"run": old["run"], **r} for n, r in before.items() if n in fatal or n not in names})
        self.now(setting, None, "inputs")
        try:
            pairs = self.engine.pairs(setting)
            problem = problems.Problem(setting, pairs)
            if pairs is not None:
                cell["pairs"], cell["density"] = pairs, pairs / setting["seq"] ** 2
                least, most = self.options.density or (0, 1)
                if not least <= cell["density"] <= most:
                    return None
            cell["flops"], cell["bytes"] = problem.flops(), problem.bytes()
            cell["floor_ms"], cell["bound"] = problem.floor(self.data["runs"][self.run_index]["rates"])
            data = self.engine.open(problem)
        except Exception as error:
            self.engine.recover()
            for i in implementations:
                cell["results"].setdefault(i.name, failed(error, "inputs: "))
            return cell
        cell["sets"], cell["rotating_bytes"] = data.sets, data.rotating_bytes
        calls = {}
        for i in implementations:
            if i.name not in fatal:
                result = cell["results"][i.name] = self.prepare(i, problem, data, calls)
                if result["verdict"] == "left out":
                    self.left_out.append(f"{problem.text()} {i.name}")
        self.measure(setting, data, calls, cell["results"])
        calls.clear()
        self.engine.close(data)
        cell["best"] = best(cell["results"])
        return cell

    def prepare(self, i, problem, data, calls):
        """Makes one implementation and checks what it computes; `calls` gets it when it may be timed."""
        if self.over():
            return {"verdict": "left out", "reason": "the budget was spent"}
        self.now(problem.setting, i.name, "checked")
        try:
            call, result = self.engine.prepare(i, problem, data)
        except (registry.NotSupported, NotImplementedError) as reason:
            return {"verdict": "unsupported", "reason": str(reason)[:300]}
        except DeviceLost:
            raise
        except Exception as error:
            self.engine.recover()
            return failed(error)
        if i.no_copies and result.get("allocations") and not result.get("allocations_of_bmm"):
            result["wrong"].append(f"{result['allocations']} allocations a call where there are to be none: something was copied")
        wrong = result.pop("wrong")
        if wrong:
            return {"verdict": "wrong", "reason": "; ".join(wrong), **result}
        calls[i.name] = call
        return {"verdict": "ok", **result}

    def measure(self, setting, data, calls, results):
        if not calls:
            return
        self.now(setting, None, "timed")
        measure_energy = (lambda names: self.energy(setting, data, names, results)) if self.options.energy else None
        try:
            times = self.engine.measure(data, calls, measure_energy)
        except DeviceLost:
            raise
        except Exception as error:
            self.engine.recover()
            times = {name: {"error": f"{type(error).__name__}: {str(error)[:300]}"} for name in calls}
        for name, measured in times.items():
            if "ms" in measured:
                results[name].update(measured)
            else:
                results[name].update(verdict="failed", reason=measured["error"])

    def energy(self, setting, data, names, results):
        """The idle window of this problem, then one window for each implementation that was timed."""
        idle = None
        for name in names:
            if self.over():
                self.left_out.append(f"{problems.text(setting)} {name} energy")
                continue
            self.now(setting, name, "energy")
            try:
                idle = self.engine.idle() if idle is None else idle
                results[name]["energy"] = self.engine.energy(data, name, idle)
            except DeviceLost:
                raise
            except Exception as error:
                self.engine.recover()
                results[name]["energy"] = {"error": f"{type(error).__name__}: {error}"}


def failed(error, where=""):
    words = str(error).strip()
    return {"verdict": "failed", "reason": f"{where}{type(error).__name__}: {words[:300]}"}


def line(cell):
    """A problem on one line, as a run prints it."""
    results = cell["results"]
    parts = []
    for name, r in sorted(results.items(), key=lambda item: item[1].get("ms", float("inf"))):
        if r["verdict"] == "ok":
            parts.append(f"{name} {r['ms']:.4g}")
        elif r["verdict"] != "unsupported":
            parts.append(f"{name} {r['verdict']}")
    floor = f"floor {cell['floor_ms']:.4g} ms" if "floor_ms" in cell else "no floor"
    out = f"{problems.text(cell['setting'])}: {floor}; " + (", ".join(parts) or "nothing serves it")
    for name, r in results.items():
        if r["verdict"] in ("wrong", "failed"):
            out += f"\n    {name} {r['verdict']}: {r['reason'][:200]}"
    return out
