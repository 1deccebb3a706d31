"""Times Kronecker-sparse layers beside PyTorch, one factor at a time, forward.

Each implementation runs in a captured graph over input sets that together exceed L2, in rounds that alternate between
implementations; medians. Weights are packed for everybody outside the timing; layouts are the same going in and out. Prints a
line a cell, then ratios: ours / floor (geometric mean) and best peer / ours (median). An implementation is one function below.

    python3 bench/time_layers.py --out layers-time.json
    python3 bench/time_layers.py --types bf16,tf32 --batches 25088 --factors 4,64,64,64 1,32,32,32
    python3 bench/time_layers.py --prepare --jobs 14     # only compiles, into the disk cache
"""
import argparse
import math
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import layer_suite as suite
import record
import timing
from splat import layer as splat_layer

NUMBERS = {"float16": 0, "bfloat16": 1, "float32": 2}
L2_BYTES = 120e6  # of all sets together, at least


class Cell:
    """One factor, batch, type and layout: weights [a, b, d, c] and sets of x and y."""

    def __init__(self, factor, n, kind, layout):
        self.factor, self.n, self.kind, self.layout = factor, n, kind, layout
        self.first = layout == "batch_first"
        self.dtype = getattr(torch, suite.TYPES[kind][0])

    def __str__(self):
        return f"({suite.name_of(self.factor)}) n {self.n} {self.kind} {self.layout}"

    def allocate(self):
        a, b, c, d = self.factor
        count = max(2, min(256, math.ceil(L2_BYTES / suite.moved_bytes(self.factor, self.n, self.kind))))
        shape = lambda features: (self.n, features) if self.first else (features, self.n)
        make = lambda features: torch.randn(shape(features), device="cuda").to(self.dtype)
        self.weights = torch.randn((a, b, d, c), device="cuda").div(c**0.5).to(self.dtype)
        self.x = [make(suite.inputs(self.factor)) for _ in range(count)]
        self.y = [torch.empty(shape(suite.outputs(self.factor)), device="cuda", dtype=self.dtype) for _ in range(count)]

    def compile(self):
        dtype, _, tf32 = suite.TYPES[self.kind]
        return splat_layer.CompiledLayer([self.factor], NUMBERS[dtype], splat_layer.LAYOUTS[self.layout], tf32, self.n, False, 0)

    def error(self):
        """Of what stands in y[0]: the largest error over the largest result, on some samples, against float64."""
        a, b, c, d = self.factor
        x, y = (self.x[0], self.y[0]) if self.first else (self.x[0].t(), self.y[0].t())
        some = torch.randint(self.n, (min(self.n, 256),), device="cuda")
        want = torch.einsum("nilj,ikjl->nikj", x[some].double().view(-1, a, c, d), self.weights.double()).reshape(len(some), -1)
        return ((y[some].double() - want).abs().max() / want.abs().max()).item()


# ---- Implementations: cell -> call(set), or None where there is none ----


def splat(cell):
    layer = cell.compile()
    weights = [cell.weights.data_ptr()]
    pairs = [(x.data_ptr(), y.data_ptr()) for x, y in zip(cell.x, cell.y)]
    cell.predicted_us = layer.predicted_us

    def call(k):
        layer.run(False, torch.cuda.current_stream().cuda_stream, cell.n, weights, x=pairs[k][0], y=pairs[k][1])

    return call


def bmm_views(cell):
    """No copies: where views of x and y are batches of matrices."""
    a, b, c, d = cell.factor
    n, w = cell.n, cell.weights
    if d == 1 and cell.first:
        w = w[:, :, 0, :].transpose(1, 2).contiguous()  # [a, c, b]
        views = [(x.view(n, a, c).transpose(0, 1), w, y.view(n, a, b).transpose(0, 1)) for x, y in zip(cell.x, cell.y)]
    elif d == 1:
        w = w[:, :, 0, :].contiguous()  # [a, b, c]
        views = [(w, x.view(a, c, n), y.view(a, b, n)) for x, y in zip(cell.x, cell.y)]
    elif a == 1 and not cell.first:
        w = w[0].transpose(0, 1).contiguous()  # [d, b, c]
        views = [(w, x.view(c, d, n).transpose(0, 1), y.view(b, d, n).transpose(0, 1)) for x, y in zip(cell.x, cell.y)]
    else:
        return None
    return lambda k: torch.bmm(views[k][0], views[k][1], out=views[k][2])


def bmm_views_loop(cell):
    """No copies either: a product for each of the d matrices of a block, over views. Batch last, where lines of views are contiguous."""
    a, b, c, d = cell.factor
    if d == 1 or cell.first:
        return None
    n = cell.n
    w = [cell.weights[:, :, j, :].contiguous() for j in range(d)]
    sets = [[(w[j], x.view(a, c, d, n)[:, :, j, :], y.view(a, b, d, n)[:, :, j, :]) for j in range(d)]
            for x, y in zip(cell.x, cell.y)]

    def call(k):
        for weights, x, y in sets[k]:
            torch.bmm(weights, x, out=y)

    return call


def bmm_permute(cell):
    a, b, c, d = cell.factor
    n = cell.n
    if cell.first:
        w = cell.weights.permute(0, 2, 3, 1).reshape(a * d, c, b).contiguous()

        def call(k):
            x = cell.x[k].view(n, a, c, d).permute(1, 3, 0, 2).reshape(a * d, n, c)
            y = torch.bmm(x, w).view(a, d, n, b)
            cell.y[k].view(n, a, b, d).copy_(y.permute(2, 0, 3, 1))
    else:
        w = cell.weights.permute(0, 2, 1, 3).reshape(a * d, b, c).contiguous()

        def call(k):
            x = cell.x[k].view(a, c, d, n).permute(0, 2, 1, 3).reshape(a * d, c, n)
            y = torch.bmm(w, x).view(a, d, b, n)
            cell.y[k].view(a, b, d, n).copy_(y.permute(0, 2, 1, 3))

    return call


def _einsum_function(cell):
    a, b, c, d = cell.factor
    if cell.first:
        return lambda x, w: torch.einsum("nilj,ikjl->nikj", x.view(-1, a, c, d), w).reshape(x.shape[0], a * b * d)
    return lambda x, w: torch.einsum("iljn,ikjl->ikjn", x.view(a, c, d, -1), w).reshape(a * b * d, x.shape[1])


def einsum(cell):
    function = _einsum_function(cell)
    return lambda k: function(cell.x[k], cell.weights)


def compiled_einsum(cell):
    function = torch.compile(_einsum_function(cell), mode="max-autotune-no-cudagraphs", dynamic=False)
    return lambda k: function(cell.x[k], cell.weights)


def dense(cell):
    a, b, c, d = cell.factor
    rows, columns = suite.outputs(cell.factor), suite.inputs(cell.factor)
    if rows * columns > 2**28 or 2 * cell.n * rows * columns / suite.RATES[cell.kind] > 0.05:
        return None
    whole = torch.zeros(a, b, d, a, c, d, device="cuda", dtype=cell.dtype)
    i, j = torch.arange(a, device="cuda"), torch.arange(d, device="cuda")
    whole[i[:, None], :, j[None, :], i[:, None], :, j[None, :]] = cell.weights.permute(0, 2, 1, 3)
    whole = whole.view(rows, columns)
    if cell.first:
        return lambda k: F.linear(cell.x[k], whole)
    return lambda k: torch.mm(whole, cell.x[k], out=cell.y[k])


PEERS = {"bmm_views": bmm_views, "bmm_views_loop": bmm_views_loop, "bmm_permute": bmm_permute, "einsum": einsum, "dense": dense, "compile": compiled_einsum}


# ---- The run ----


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--factors", nargs="*", help="a,b,c,d ...: default all of layer_suite.py")
    parser.add_argument("--batches", default=",".join(map(str, suite.BATCHES)))
    parser.add_argument("--types", default=",".join(suite.TYPES))
    parser.add_argument("--layouts", default=",".join(suite.LAYOUTS))
    parser.add_argument("--peers", default="bmm_views,bmm_views_loop,bmm_permute,einsum,dense", help="or compile, or 'none'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target-ms", type=float, default=4.0, help="length of a sample")
    parser.add_argument("--seconds", type=float, default=560, help="cells that do not fit are left out, and said so")
    parser.add_argument("--prepare", action="store_true", help="compile into the disk cache and end")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile before anything is timed")
    parser.add_argument("--commit")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


def cells(args):
    factors = [tuple(map(int, f.split(","))) for f in args.factors] if args.factors else suite.FACTORS
    return [Cell(f, n, kind, layout) for n in map(int, args.batches.split(",")) for f in factors
            for kind in args.types.split(",") for layout in args.layouts.split(",")]


def prepare(args):
    """Processes of their own, for the compiler uses one core."""
    skip = [f for f in sys.argv[1:] if f != "--prepare" and not f.startswith("--out")]
    if "--out" in sys.argv:
        at = sys.argv.index("--out")
        skip = [f for f in sys.argv[1:at] + sys.argv[at + 2:] if f != "--prepare"]
    parts = [subprocess.Popen([sys.executable, os.path.abspath(__file__), *skip, "--part", f"{k}/{args.jobs}"])
             for k in range(args.jobs)]
    for part in parts:
        part.wait()


def prepare_part(args):
    part, parts = map(int, args.part.split("/"))
    torch.zeros(1, device="cuda")
    for cell in cells(args)[part::parts]:
        try:
            cell.compile()
        except Exception as error:
            print(f"{cell}: {error}")


def measure(cell, args, names):
    cell.allocate()
    torch.backends.cuda.matmul.allow_tf32 = cell.kind == "tf32"
    out = {"factor": cell.factor, "n": cell.n, "type": cell.kind, "layout": cell.layout,
           "floor_us": suite.floor_us(cell.factor, cell.n, cell.kind)}
    calls = {"splat": splat(cell)}
    calls["splat"](0)
    torch.cuda.synchronize()
    out["error"], out["predicted_us"] = cell.error(), cell.predicted_us
    for name in names:
        try:
            call = PEERS[name](cell)
        except Exception as error:  # an out-of-memory of a peer is its own
            out[name] = f"{type(error).__name__}: {str(error)[:120]}"
            continue
        if call:
            calls[name] = call
    results = timing.alternate([timing.Timed(n, c, len(cell.x)) for n, c in calls.items()], args.rounds, args.target_ms)
    for name, result in results.items():
        out[name] = result["ms"] * 1e3 if "ms" in result else result["error"]
    peers = [out[n] for n in names if isinstance(out.get(n), float)]
    if isinstance(out["splat"], float):
        out["of_floor"] = out["splat"] / out["floor_us"]
        out["speedup"] = min(peers) / out["splat"] if peers else None
    return out


def line_of(cell, out, names):
    number = lambda v: f"{v:10.1f}" if isinstance(v, float) else f"{'-' if v is None else 'failed':>10}"
    text = f"{str(cell):46} {number(out['splat'])} {number(out['floor_us'])}" + "".join(f" {number(out.get(n))}" for n in names)
    ratio = lambda v: f"{v:8.2f}" if isinstance(v, float) else f"{'-':>8}"
    return f"{text} {ratio(out.get('of_floor'))} {ratio(out.get('speedup'))}  {out['error']:.1e}"


def summarise(results):
    lines = []
    groups = {"all": lambda r: True, "d > 1": lambda r: r["factor"][3] > 1, "d = 1": lambda r: r["factor"][3] == 1}
    groups |= {f"{k} {l}": (lambda r, k=k, l=l: r["type"] == k and r["layout"] == l) for k in suite.TYPES for l in suite.LAYOUTS}
    groups |= {f"n {n}": (lambda r, n=n: r["n"] == n) for n in suite.BATCHES}
    groups |= {f"({suite.name_of(f)})": (lambda r, f=f: tuple(r["factor"]) == f) for f in suite.FACTORS}
    for name, belongs in groups.items():
        of_floor = [r["of_floor"] for r in results if belongs(r) and r.get("of_floor")]
        speedup = [r["speedup"] for r in results if belongs(r) and r.get("speedup")]
        if of_floor:
            mean = math.exp(statistics.fmean(map(math.log, of_floor)))
            words = f"best peer / ours: median {statistics.median(speedup):.2f}, least {min(speedup):.2f}" if speedup else ""
            lines.append(f"{name:24} {len(of_floor):4} cells, ours / floor: geometric mean {mean:.2f}; {words}")
    return lines


def main():
    args = arguments()
    if args.part:
        return prepare_part(args)
    began = time.monotonic()
    prepare(args)
    print(f"kernels compiled in {time.monotonic() - began:.0f} s", flush=True)
    if args.prepare:
        return None
    names = [] if args.peers == "none" else args.peers.split(",")
    print(f"{'microseconds':46} {'splat':>10} {'floor':>10}" + "".join(f" {n:>10}" for n in names) + "  / floor  speedup  error")
    results, left = [], 0
    for cell in cells(args):
        if time.monotonic() - began > args.seconds:
            left += 1
            continue
        try:
            out = measure(cell, args, names)
        except Exception as error:
            out = {"factor": cell.factor, "n": cell.n, "type": cell.kind, "layout": cell.layout, "failed": str(error)[:300]}
            print(f"{cell}: {out['failed']}", flush=True)
            results.append(out)
            continue
        results.append(out)
        print(line_of(cell, out, names), flush=True)
        del cell.x, cell.y, cell.weights
        torch.cuda.empty_cache()
    lines = summarise(results)
    print("\n".join(lines))
    if left:
        print(f"{left} cells were left out after {args.seconds:.0f} s")
    if args.out:
        record.write(args.out, {"commit": record.commit_of(args.commit), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                                "command": sys.argv, "rates": suite.RATES, "memory": suite.MEMORY, "cells": results,
                                "summary": lines, "left_out": left})
    return None


if __name__ == "__main__":
    sys.exit(main())
