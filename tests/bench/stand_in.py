"""The benchmark's plumbing with neither torch nor a GPU: a stand-in for the engine, and settings. Import it before compare."""

import os
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
os.environ.setdefault("SPLAT_LIB", str(ROOT / "build" / "libsplat.so"))


class Clock:
    """Seconds, which pass when something takes time."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class StandIn:
    """An engine whose implementations say themselves how long they take: make(p, data) returns (milliseconds a call, result)."""

    def __init__(self, clock=None, pairs=100):
        self.clock, self.allowed = clock or Clock(), pairs
        self.opened, self.recovered, self.fail_open, self.fail_measure = [], 0, None, None
        self.prepare_seconds = 1.0

    def describe(self):
        return {"date": "2026-01-02 03:04:05 UTC", "gpu": "stand-in", "commit": "c0ffee"}

    def rates(self, dtypes):
        return {"matmul_flops": {d: 1e15 for d in dtypes}, "copy_bytes": 1e12}

    def pairs(self, setting):
        return self.allowed if "pattern" in setting else None

    def open(self, problem):
        self.opened.append(problem.text())
        if self.fail_open:
            raise self.fail_open
        return types.SimpleNamespace(sets=2, rotating_bytes=10)

    def close(self, data):
        pass

    def recover(self):
        self.recovered += 1

    def prepare(self, implementation, problem, data):
        self.clock.now += self.prepare_seconds
        ms, result = implementation.make(problem, data)
        return ms, {"wrong": [], "error_frobenius": 1e-4, "allocations": 0, **result}

    def measure(self, data, calls, then=None):
        if self.fail_measure:
            raise self.fail_measure
        if then:
            then(list(calls))
        return {name: {"ms": ms, "min_ms": ms, "samples": 3, "method": "graph"} for name, ms in calls.items()}

    def idle(self):
        return 100e3

    def energy(self, data, name, idle_mw):
        from compare import energy
        return energy.per_call(500e3, idle_mw, 2.0)


def kron(n=256, shape="4,64,64,64", dtype="fp16", layout="batch_last", op="forward"):
    return {"kind": "kron", "shape": shape, "op": op, "n": n, "dtype": dtype, "layout": layout}


def sddmm(pattern="causal", seq=1024, dtype="bf16"):
    return {"kind": "sddmm", "pattern": pattern, "seq": seq, "dim": 64, "batch": 1, "heads": 2, "dtype": dtype, "layout": "bhsd"}
