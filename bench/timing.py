"""Timing on the GPU: launches captured in a graph over rotating input sets, rounds that alternate between
implementations, medians; and the two ceilings of the machine.
"""
import statistics
import time

import torch


class Timed:
    """One implementation: call(set index) enqueues one run on torch's current stream; with wall=True, call(count) does
    that many runs and waits for them."""

    def __init__(self, name, call, sets, graph=True, wall=False):
        self.name, self.call, self.sets, self.wall = name, call, sets, wall
        self.samples, self.error, self.graph, self.method = [], None, None, "wall" if wall else "events"
        self.launches, self.want_graph = sets, graph and not wall

    def prepare(self, target_ms):
        """Warms up, chooses how many runs one sample holds (a multiple of the sets), captures them."""
        for n in range(1 if self.wall else self.sets):
            self.call(self.sets if self.wall else n)
        torch.cuda.synchronize()
        estimate = self._once(self.sets)
        turns = max(1, min(40, round(target_ms / max(estimate * self.sets, 1e-3))))
        self.launches = self.sets * turns
        if self.want_graph:
            self._capture()
        self._once(self.launches)  # first replay uploads the graph

    def _capture(self):
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for n in range(self.launches):
                    self.call(n % self.sets)
            self.graph, self.method = graph, "graph"
        except Exception as error:  # measured launch by launch instead, and recorded so
            self.method = f"events (no graph: {str(error).splitlines()[0][:80]})"
            torch.cuda.synchronize()

    def _once(self, launches):
        """Milliseconds a run."""
        if self.wall:
            torch.cuda.synchronize()
            began = time.perf_counter()
            self.call(launches)
            return (time.perf_counter() - began) * 1e3 / launches
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        if self.graph is not None:
            self.graph.replay()
        else:
            for n in range(launches):
                self.call(n % self.sets)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / launches

    def sample(self):
        self.samples.append(self._once(self.launches))

    def result(self):
        if self.error or not self.samples:
            return {"error": self.error or "not measured"}
        return {"ms": statistics.median(self.samples), "min_ms": min(self.samples), "max_ms": max(self.samples),
                "samples": len(self.samples), "launches_a_sample": self.launches, "method": self.method}


def alternate(timed, rounds, target_ms=12.0, then=None):
    """Measures every implementation `rounds` times, in an order that rotates from round to round; then(items) gets those
    that could be measured while their graphs are still there."""
    ready = []
    for item in timed:
        try:
            item.prepare(target_ms)
            ready.append(item)
        except Exception as error:
            item.error = f"{type(error).__name__}: {str(error)[:300]}"
            torch.cuda.synchronize()
    for turn in range(rounds):
        order = ready[turn % len(ready):] + ready[:turn % len(ready)] if ready else []
        for item in order:
            item.sample()
    if then:
        then(ready)
    results = {item.name: item.result() for item in timed}
    for item in timed:
        item.graph = None
    return results


def ceiling_times(rounds, dtype):
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
    c = torch.empty_like(a)
    source = torch.empty(1 << 31, device="cuda", dtype=torch.int16).random_()
    target = torch.empty_like(source)
    items = [Timed("matmul", lambda n: torch.matmul(a, b, out=c), 2), Timed("copy", lambda n: torch.mul(source, 1, out=target), 1)]
    return alternate(items, rounds, target_ms=20.0)


def ceilings(rounds=5, dtype=torch.bfloat16):
    """Achieved rates of an 8192^3 matrix product of this type (float32 as torch's float32 precision is set) and of a large
    device copy (bytes read + written)."""
    results = ceiling_times(rounds, dtype)
    torch.cuda.empty_cache()
    for name in ("matmul", "copy"):
        if "ms" not in results[name]:
            raise RuntimeError(f"the {name} ceiling could not be measured: {results[name]['error']}")
    matmul, copy = results["matmul"]["ms"], results["copy"]["ms"]
    return {"matmul_flops": 2 * 8192**3 / (matmul * 1e-3), "copy_bytes": 2 * 2 * (1 << 31) / (copy * 1e-3),
            "matmul_ms": matmul, "copy_ms": copy, "methods": {n: r["method"] for n, r in results.items()}}
