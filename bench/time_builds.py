"""Times builds of the library against each other on the GPU: every case is checked against float64, then timed in alternation.

    python3 bench/time_builds.py --build old=old/libsplat.so --build new=build/libsplat.so --dims 64,128

A case is DIM:PATTERN[:TILE], PATTERN a name of the suite or an expression, such as '64:causal' or '64:grid(128, 13):64x64'; a
build may be given twice under two names with options, as in new64=build/libsplat.so,64x64 (a tile) to compare tiles.
"""
import argparse
import concurrent.futures
import os
import sys

import torch

import record
import reference
import splat_ctypes
import suite
import timing


class Build:
    def __init__(self, text):
        self.name, _, rest = text.partition("=")
        path, _, self.tile = rest.partition(",")
        self.lib = splat_ctypes.Splat(path)
        self.context = self.lib.context()

    def compile(self, case, args):
        options = dict(dtype=splat_ctypes.BF16, head_dim=case.dim, batch=args.batch, heads=args.heads, kv_heads=args.heads,
                       device=splat_ctypes.DEVICE_GPU)
        tile = self.tile or case.tile
        if tile:
            options["tile_rows"], options["tile_cols"] = (int(x) for x in tile.split("x"))
        return self.context.compile(self.lib.expression(case.text, args.seq), **options)


class Case:
    def __init__(self, text, names):
        dim, pattern, *tile = text.split(":")
        self.dim, self.name, self.tile = int(dim), pattern, tile[0] if tile else ""
        self.text = names.get(pattern, pattern)


def check(case, kernel, mask, tensors, seq):
    """Against float64, on rows spread over the sequence."""
    q, k, v, o, lse = tensors
    indices = sorted({int(x) for x in torch.linspace(0, seq - 1, 37)} | {1, seq // 2 + 1})
    allowed = torch.tensor([list(row) for row in mask.rows(indices)], dtype=torch.bool, device="cuda")
    rows = torch.tensor(indices, device="cuda")
    ref = reference.attention(q[:1, :2], k[:1, :2], v[:1, :2], allowed, rows, case.dim**-0.5)
    return reference.differences(o[:1, :2, rows], lse[:1, :2, rows], *ref, torch.bfloat16)


def run(case, builds, kernels, args):
    shape = (args.batch, args.heads, args.seq, case.dim)
    make = lambda: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    sets = [(make(), make(), make(), torch.empty(shape, device="cuda", dtype=torch.bfloat16),
             torch.empty(shape[:3], device="cuda")) for _ in range(args.sets)]
    timed, problems, predicted = [], {}, {}
    for build in builds:
        kernel = kernels[build.name, case]
        if isinstance(kernel, Exception):
            problems[build.name] = [str(kernel)]
            continue
        size = kernel.workspace_bytes(args.batch, args.heads)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
        calls = [build.lib.args(*s, workspace=workspace) for s in sets]

        def call(n, kernel=kernel, calls=calls):
            kernel.run(calls[n], torch.cuda.current_stream().cuda_stream)

        sets[0][3].fill_(float("nan"))
        sets[0][4].fill_(float("nan"))
        call(0)
        torch.cuda.synchronize()
        problems[build.name] = check(case, kernel, kernel.mask, sets[0], args.seq)
        info = kernel.plan_info()
        predicted[build.name] = (info["tile_rows"], info["tile_cols"], info["predicted_us"])
        timed.append(timing.Timed(build.name, call, args.sets))
    times = timing.alternate(timed, args.rounds, 8.0)
    return {"case": f"{case.dim}:{case.name}:{case.tile}", "problems": {k: p for k, p in problems.items() if p},
            "plans": predicted, "times": times}


def line_of(out, names):
    first = out["times"].get(names[0], {}).get("ms")
    cells = []
    for name in names:
        ms = out["times"].get(name, {}).get("ms")
        cells.append(f"{'-':>16}" if not ms else f"{ms * 1e3:8.1f} {first / ms if first else 0:6.3f}x")
    bad = f"  WRONG: {out['problems']}" if out["problems"] else ""
    tiles = " ".join(sorted({f"{t[0]}x{t[1]}" for t in out["plans"].values()}))
    return f"{out['case']:45.45} {' '.join(cells)}  {tiles}{bad}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="append", required=True, help="NAME=PATH of a libsplat.so, with ,TILE")
    parser.add_argument("--dims", default="64,128", help="with the suite's patterns")
    parser.add_argument("--patterns", default="", help="of the suite, by name (default: all); - for none")
    parser.add_argument("--case", action="append", default=[], help="DIM:PATTERN[:TILE], besides the suite's")
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--sets", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--commit")
    parser.add_argument("--out")
    args = parser.parse_args()
    builds, names = [Build(text) for text in args.build], {p.name: p.expression for p in suite.patterns()}
    wanted = [n for n in names if not args.patterns or n in args.patterns.split(",")] if args.patterns != "-" else []
    cases = [Case(f"{dim}:{name}", names) for dim in args.dims.split(",") for name in wanted]
    cases += [Case(text, names) for text in args.case]

    def compile_one(pair):
        build, case = pair
        try:
            return (build.name, case), build.compile(case, args)
        except splat_ctypes.SplatError as error:
            return (build.name, case), error

    torch.cuda.init()
    torch.zeros(1, device="cuda")
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        kernels = dict(pool.map(compile_one, [(b, c) for c in cases for b in builds]))
    labels = [b.name for b in builds]
    print(f"{'us, and times faster than ' + labels[0]:45.45} " + " ".join(f"{n:>16}" for n in labels))
    outs = []
    for case in cases:
        outs.append(run(case, builds, kernels, args))
        print(line_of(outs[-1], labels), flush=True)
    for name in labels[1:]:
        ratios = [o["times"][labels[0]]["ms"] / o["times"][name]["ms"] for o in outs
                  if "ms" in o["times"].get(name, {}) and "ms" in o["times"].get(labels[0], {})]
        if ratios:
            print(f"{name}: geometric mean {suite.geometric_mean(ratios):.3f} times as fast as {labels[0]}, "
                  f"least {min(ratios):.3f}, most {max(ratios):.3f}")
    if args.out:
        record.write(args.out, {"kind": "builds", "meta": record.metadata(builds[-1].lib, args.commit), "setup": vars(args),
                                "results": outs})
    return 1 if any(o["problems"] for o in outs) else 0


if __name__ == "__main__":
    sys.exit(main())
