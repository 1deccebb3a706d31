"""Measures in a process of its own, so that a crash, a hang or a lost device costs one implementation at one setting: the
process is started again and goes on with the rest.

The worker says in current.json what it is about to do (runner.now). When it dies there, or stays there too long, that implementation
gets the verdict "failed" for good.
"""
import json
import os
import subprocess
import sys
import time

from compare import problems, runner

DEVICE_LOST = 70  # exit status
START_S = 300.0   # before the worker has said anything: imports, rates
GRACE_S = 20.0    # beyond the budget, for what was begun within it


def supervise(command, out, budget, step_seconds, settings, names, grace=GRACE_S):
    """Runs the command until it has gone through all settings, or the budget is spent. `names` gives the implementations asked for
    at a setting. Returns an exit status."""
    current, began, again = os.path.join(out, runner.CURRENT), time.time(), []
    while True:
        if os.path.exists(current):
            os.remove(current)
        left = budget - (time.time() - began)
        words = command + again + ([f"--budget={max(left, 0.0)}"] if budget != float("inf") else [])
        status, why = wait(subprocess.Popen(words), current, step_seconds, began + budget + grace)
        if status == 0:
            return 0
        if status is None:
            cut(out, settings, names)
            return 0
        at = read(current)
        if at is None or status in (1, 2):
            print(f"bench/compare: the measuring process ended with {why} before it measured", file=sys.stderr)
            return status if status > 0 else 1
        blame(out, at, why, names)
        print(f"{problems.text(at['setting'])} {at['implementation'] or ''}: {why}; going on without it")
        again = ["--same-run"]


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def wait(process, current, step_seconds, deadline):
    """(exit status, words) of a worker, which is ended when it stays at one step for too long; (None, words) when it is ended
    at the deadline."""
    began = time.time()
    try:
        while True:
            try:
                status = process.wait(0.2)
                return status, ending(status)
            except subprocess.TimeoutExpired:
                at = read(current)
                limit, now = step_seconds if at else max(START_S, step_seconds), time.time()
                if now > deadline:
                    return None, "the budget was spent"
                if now - (at["since"] if at else began) > limit:
                    return -9, f"took longer than {limit:.0f} s"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ending(status):
    if status == DEVICE_LOST:
        return "the device was lost"
    return f"the process died by signal {-status}" if status < 0 else f"exit status {status}"


def cut(out, settings, names):
    """Says what a worker that was ended at the deadline had not finished."""
    data = runner.load(out)
    data["left_out"] = [problems.text(s) for s in settings if not runner.done(runner.cell_of(data, s), names(s))]
    runner.save(out, data)
    print(f"the budget was spent before: {runner.few(data['left_out'])}")


def blame(out, at, why, names):
    """Records the failure: of the implementation at work, or of all that have no verdict when none was."""
    data, setting = runner.load(out), at["setting"]
    cell = runner.cell_of(data, setting) or {"setting": setting, "run": len(data["runs"]) - 1, "results": {}}
    for name in [at["implementation"]] if at["implementation"] else names(setting):
        cell["results"][name] = {"verdict": "failed", "fatal": True, "reason": f"{why} ({at['stage']})"}
    cell["best"] = runner.best(cell["results"])
    runner.replace_cell(data, cell)
    runner.save(out, data)
