"""Runs with a stand-in for the engine: verdicts, budgets, continued records, processes that die."""

import json
import os
import signal
import sys
import textwrap

import pytest
from stand_in import ROOT, StandIn, kron, sddmm

from compare import registry, runner, supervisor


def fill(own, kind="kron"):
    own(kind, "fast")(lambda p, data: (1.0, {}))
    own(kind, "slow")(lambda p, data: (3.0, {}))
    own(kind, "wrong")(lambda p, data: (0.1, {"wrong": ["set 0: 3 of 9 outputs are NaN or infinite"]}))

    @own(kind, "copies", no_copies=True)
    def copies(p, data):
        return 0.2, {"allocations": 2}

    @own(kind, "none")
    def none(p, data):
        raise registry.NotSupported("no such shape")

    @own(kind, "broken")
    def broken(p, data):
        raise RuntimeError("out of luck")


def test_verdicts_and_the_best(own, measure, tmp_path):
    fill(own)
    engine = StandIn()
    data = measure([kron()], engine)
    (cell,) = data["cells"]
    results = cell["results"]
    assert {n: r["verdict"] for n, r in results.items()} == {
        "fast": "ok", "slow": "ok", "wrong": "wrong", "copies": "wrong", "none": "unsupported", "broken": "failed"}
    assert cell["best"] == "fast" and results["fast"]["ms"] == 1.0 and "ms" not in results["wrong"]
    assert "NaN" in results["wrong"]["reason"] and "2 allocations" in results["copies"]["reason"]
    assert results["none"]["reason"] == "no such shape" and results["broken"]["reason"] == "RuntimeError: out of luck"
    assert engine.recovered == 1 and cell["bound"] == "memory" and cell["floor_ms"] == pytest.approx(cell["bytes"] / 1e9)
    with open(tmp_path / "compare.json", encoding="utf-8") as file:
        assert json.load(file)["cells"] == data["cells"]
    assert not (tmp_path / "current.json").exists()
    assert any("fast 1, slow 3" in line and "broken failed" in line for line in data["said"])


def test_a_workspace_of_bmm_is_no_copy(own, measure):
    own("kron", "views", no_copies=True)(lambda p, data: (1.0, {"allocations": 1, "allocations_of_bmm": 1}))
    assert measure([kron()])["cells"][0]["results"]["views"]["verdict"] == "ok"


def test_errors_of_inputs_and_of_timing_stay_in_their_cell(own, measure):
    fill(own)
    engine = StandIn()
    engine.fail_open = MemoryError("too large")
    (cell,) = measure([kron()], engine)["cells"]
    assert all(r == {"verdict": "failed", "reason": "inputs: MemoryError: too large"} for r in cell["results"].values())
    engine = StandIn()
    engine.fail_measure = RuntimeError("no clock")
    cell = measure([kron(n=1), kron(n=2)], engine)["cells"][-1]
    assert cell["results"]["fast"]["verdict"] == "failed" and "no clock" in cell["results"]["fast"]["reason"] and cell["best"] is None


def test_a_lost_device_ends_the_process(own, measure):
    fill(own)

    class Lost(StandIn):
        def recover(self):
            raise runner.DeviceLost("gone")
    with pytest.raises(runner.DeviceLost):
        measure([kron()], Lost())


def test_the_budget_cuts_and_the_rest_is_measured_later(own, measure):
    for k in range(4):
        own("kron", f"i{k}")(lambda p, data: (1.0, {}))
    settings = [kron(n=n) for n in (1, 2, 3)]
    data = measure(settings, budget=5.5)  # each takes a second
    first, second = data["cells"]
    assert all(r["verdict"] == "ok" for r in first["results"].values())
    assert [r["verdict"] for r in second["results"].values()] == ["ok", "ok", "left out", "left out"]
    assert data["left_out"] == ["kron 4,64,64,64 forward n 2 fp16 batch_last i2", "kron 4,64,64,64 forward n 2 fp16 batch_last i3",
                                "kron 4,64,64,64 forward n 3 fp16 batch_last"]
    assert "the budget of 6 s was spent before" in data["said"][-1]
    engine = StandIn()
    data = measure(settings, engine)
    assert len(engine.opened) == 2 and len(data["cells"]) == 3 and data["left_out"] == [] and len(data["runs"]) == 2
    assert all(r["verdict"] == "ok" for c in data["cells"] for r in c["results"].values())
    assert {c["setting"]["n"]: c["run"] for c in data["cells"]} == {1: 0, 2: 1, 3: 1}
    engine = StandIn()
    assert measure(settings, engine)["cells"] == data["cells"] and engine.opened == []


def test_an_implementation_added_later_joins_the_record(own, measure):
    own("kron", "old")(lambda p, data: (2.0, {}))
    measure([kron()], wanted=("old",))
    own("kron", "new")(lambda p, data: (1.0, {}))
    (cell,) = measure([kron()], wanted=("new",))["cells"]
    assert cell["best"] == "new" and cell["run"] == 1 and cell["results"]["old"]["run"] == 0 and "run" not in cell["results"]["new"]


def test_density(own, measure):
    fill(own, "sddmm")
    data = measure([sddmm(seq=1024), sddmm(seq=16)], density=(0.1, 0.5))
    cells = data["cells"]
    assert "1 settings have masks outside the density of 0.1 to 0.5" in data["said"]
    assert [(c["setting"]["seq"], c["density"]) for c in cells] == [(16, 100 / 256)]


def test_energy_and_its_errors(own, measure):
    fill(own)
    results = measure([kron()], energy=True)["cells"][0]["results"]
    assert results["fast"]["energy"] == {"ms": 2.0, "watt": 500.0, "idle_watt": 100.0, "gross_mj": 1000.0, "net_mj": 800.0}
    assert "energy" not in results["wrong"]

    # Without energy a cell is not done when energy is wanted.
    measure([kron(n=3)])
    engine = StandIn()
    cell = measure([kron(n=3)], engine, energy=True)["cells"][-1]
    assert len(engine.opened) == 1 and "energy" in cell["results"]["fast"]
    assert measure([kron(n=3)], engine, energy=True) and len(engine.opened) == 1

    class Blind(StandIn):
        def idle(self):
            raise OSError("no counter")
    results = measure([kron(n=2)], Blind(), energy=True)["cells"][-1]["results"]
    assert results["fast"]["energy"] == {"error": "OSError: no counter"} and results["fast"]["verdict"] == "ok"


def test_energy_that_the_budget_leaves_out(own, measure):
    own("kron", "one")(lambda p, data: (1.0, {}))
    data = measure([kron()], budget=0.5, energy=True)
    assert data["left_out"] == ["kron 4,64,64,64 forward n 256 fp16 batch_last one energy"]
    assert "energy" not in data["cells"][0]["results"]["one"] and not runner.done(data["cells"][0], ["one"], energy=True)


def test_a_long_list_is_cut():
    assert runner.few(["a", "b"]) == "a; b" and runner.few(list("abcd"), 2) == "a; b; and 2 more (left_out in compare.json)"


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "compare.json"
    path.write_text('{"kind": "time"}')
    with pytest.raises(ValueError, match="its kind is 'time'"):
        runner.load(str(tmp_path))
    path.write_text("{")
    with pytest.raises(ValueError, match="compare.json"):
        runner.load(str(tmp_path))


WORKER = """
    import argparse, os, signal, sys, time
    sys.path[:0] = [{bench!r}, {tests!r}]
    from stand_in import StandIn, kron
    from compare import registry, runner, supervisor
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--same-run", action="store_true")
    args = parser.parse_args()
    registry.implementation("kron", "good")(lambda p, data: (1.0, {{}}))

    @registry.implementation("kron", "bad")
    def bad(p, data):
        if p.n == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if p.n == 2:
            time.sleep(60)
        if p.n == 3:
            sys.exit(supervisor.DEVICE_LOST)
        return 2.0, {{}}
    options = runner.Options({out!r}, budget=args.budget)
    runner.Runner(StandIn(), options, time.monotonic).run([kron(n=n) for n in {sizes}], args.same_run)
"""


def supervised(tmp_path, sizes, budget=float("inf"), step_seconds=5.0, grace=0.0):
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER.format(bench=str(ROOT / "bench"), tests=os.path.dirname(__file__), out=str(tmp_path),
                                                    sizes=sizes)))
    settings = [kron(n=n) for n in sizes]
    status = supervisor.supervise([sys.executable, str(script)], str(tmp_path), budget, step_seconds, settings,
                                  lambda s: ["good", "bad"], grace)
    return status, runner.load(str(tmp_path))


def test_crashes_hangs_and_lost_devices_cost_one_implementation_each(tmp_path):
    status, data = supervised(tmp_path, [1, 2, 3, 4])
    verdicts = {c["setting"]["n"]: c["results"] for c in data["cells"]}
    assert status == 0 and sorted(verdicts) == [1, 2, 3, 4] and len(data["runs"]) == 1
    assert all(v["good"]["verdict"] == "ok" for v in verdicts.values()) and verdicts[4]["bad"]["verdict"] == "ok"
    assert f"died by signal {int(signal.SIGSEGV)}" in verdicts[1]["bad"]["reason"]
    assert "took longer than 5 s" in verdicts[2]["bad"]["reason"]
    assert "the device was lost" in verdicts[3]["bad"]["reason"]


def test_what_does_not_end_is_cut_at_the_budget(tmp_path):
    status, data = supervised(tmp_path, [4, 2, 5], budget=8.0, step_seconds=50.0)
    assert status == 0 and [c["setting"]["n"] for c in data["cells"]] == [4]
    assert data["left_out"] == [f"kron 4,64,64,64 forward n {n} fp16 batch_last" for n in (2, 5)]


def test_a_worker_that_cannot_begin_ends_the_run(tmp_path, capfd):
    script = tmp_path / "worker.py"
    script.write_text("raise SystemExit(1)")
    assert supervisor.supervise([sys.executable, str(script)], str(tmp_path), 60.0, 60.0, [], list) == 1
    assert "ended with exit status 1 before it measured" in capfd.readouterr().err
