"""Times the suite at lengths that divide nothing, against the length beside them that divides all; splat alone.

    python3 bench/time_lengths.py --out bench/results/lengths.json
    python3 bench/time_lengths.py --plan                            predictions alone: needs neither GPU nor PyTorch
    python3 bench/time_lengths.py --case 'window(256)@8192@128@64x64' ...  other masks, lengths, head dims, tile shapes

For each pattern, head dim and length: time, time for each allowed pair over that at the first length, and what the plan
predicted of both. Outputs are compared with float64 attention on sampled rows.
"""
import argparse
import sys
import time

import splat_ctypes
import suite

MARK = 1.15  # time for each pair, over that at the first length


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib")
    parser.add_argument("--out")
    parser.add_argument("--commit")
    parser.add_argument("--patterns", help="comma-separated beginnings of names. Default: all")
    parser.add_argument("--lengths", type=int, nargs="+", default=[8192, 8191, 8200, 8256, 8135])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--target-ms", type=float, default=4.0, help="length of one sample")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds after which no new case is begun")
    parser.add_argument("--case", nargs="*", default=[], help="EXPRESSION@LENGTH@DIM[@MxN[@LAYOUT]] beside the suite")
    parser.add_argument("--plan", action="store_true", help="predictions alone")
    return parser.parse_args()


class Case:
    """One mask at one length and head dim."""

    def __init__(self, args, name, expression, length, dim, tile="0x0", layout=0, pattern=None):
        self.name, self.expression, self.length, self.dim, self.pattern = name, expression, length, dim, pattern
        rows, cols = (int(n) for n in tile.split("x"))
        self.options = dict(dtype=splat_ctypes.BF16, head_dim=dim, batch=args.batch, heads=args.heads, tile_rows=rows,
                            tile_cols=cols, layout=int(layout))
        self.out = {"pattern": name, "expression": expression, "seq": length, "dim": dim, "problems": []}

    def plan(self, lib):
        self.options["arch"] = 90
        self.out["plan"] = lib.plan(lib.expression(self.expression, self.length), **self.options).info()

    def run(self, args, lib, context, tensors):
        """Compiles, checks and times."""
        import torch

        import reference
        import timing
        kernel = context.compile(lib.expression(self.expression, self.length), device=splat_ctypes.DEVICE_GPU,
                                 **self.options)
        self.out["plan"], self.out["predicates"] = kernel.plan_info(), kernel.tiles_by_predicate()
        size = kernel.workspace_bytes(args.batch, args.heads)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
        cut = [tuple(t[:, :, :self.length] for t in one) for one in tensors]
        calls = [lib.args(*one, workspace=workspace) for one in cut]

        def call(n):
            kernel.run(calls[n], torch.cuda.current_stream().cuda_stream)
        for one in cut:
            one[3].fill_(float("nan")), one[4].fill_(float("nan"))
        for n in range(len(cut)):
            call(n)
        torch.cuda.synchronize()
        if self.pattern:
            shape = suite.shape_of(lib, self.pattern, self.length, device="cuda")
            rows = torch.tensor([0, self.length // 2 + 5, self.length - 130, self.length - 1], device="cuda")
            allowed = suite.rows_of(self.pattern, shape, rows, "cuda")
            q, k, v, o, lse = cut[-1]
            expected = reference.attention(q, k, v, allowed, rows, reference.default_scale(q))
            self.out["problems"] = reference.differences(o[:, :, rows], lse[:, :, rows], *expected, torch.bfloat16)
            self.out["problems"] += ["rows are missing"] if bool(o.isnan().any()) else []
        timed = timing.alternate([timing.Timed("splat", call, len(cut))], args.rounds, args.target_ms)["splat"]
        self.out.update({n: timed[n] for n in ("ms", "min_ms", "max_ms", "error") if n in timed})


def cases_of(args):
    wanted = args.patterns.split(",") if args.patterns else [""]
    picked = [p for p in suite.SUITE if any(p.name.startswith(w) for w in wanted)]
    for dim in args.dims:
        for pattern in picked:
            for length in args.lengths:
                yield Case(args, pattern.name, pattern.expression, length, dim, pattern=pattern)
    for text in args.case:
        expression, length, dim, *rest = text.split("@")
        yield Case(args, f"{expression} {' '.join(rest)}".strip(), expression, int(length), int(dim), *rest)


def compare(results, first):
    """Adds what a pair takes against the first length's."""
    base = {(r["pattern"], r["dim"]): r for r in results if r["seq"] == first}
    for r in results:
        b = base.get((r["pattern"], r["dim"]))
        if not b:
            continue
        pairs = b["plan"]["allowed_pairs"] / r["plan"]["allowed_pairs"]
        r["predicted_ratio"] = r["plan"]["predicted_us"] / b["plan"]["predicted_us"] * pairs
        if "ms" in r and "ms" in b:
            r["ratio"] = r["ms"] / b["ms"] * pairs


def show(results):
    for r in results:
        us = 1e3 * r["ms"] if "ms" in r else 0.0
        over = "  over the mark" if r.get("ratio", r.get("predicted_ratio", 0)) > MARK else ""
        print(f"{r['pattern']:34.34} D {r['dim']:3} S {r['seq']:5} {r['plan']['tile_rows']:3}x{r['plan']['tile_cols']:<3} "
              f"predicted {r['plan']['predicted_us']:7.1f}  measured {us:7.1f} us  a pair x{r.get('ratio', 0):.2f} "
              f"(predicted x{r.get('predicted_ratio', 0):.2f}){over}", flush=True)
        for problem in r["problems"] + ([r["error"]] if "error" in r else []):
            print(f"    {problem[:200]}", flush=True)


def main():
    args = arguments()
    lib = splat_ctypes.Splat(args.lib)
    began, results, left = time.monotonic(), [], 0
    if not args.plan:
        import torch
        context = lib.context()
        tensors = {}
    for case in cases_of(args):
        if args.plan:
            case.plan(lib)
            results.append(case.out)
            continue
        if time.monotonic() - began > args.budget:
            left += 1
            continue
        if case.dim not in tensors:
            tensors.clear()
            shape = (args.batch, args.heads, max(args.lengths + [case.length]), case.dim)
            tensors[case.dim] = [tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)) +
                                 (torch.empty(shape[:3], device="cuda"),) for _ in range(2)]
        try:
            case.run(args, lib, context, tensors[case.dim])
        except splat_ctypes.SplatError as error:
            print(f"{case.name} at {case.length}, D {case.dim}: {error}", flush=True)
            continue
        results.append(case.out)
    compare(results, args.lengths[0])
    show(results)
    if args.out:
        import record
        record.write(args.out, {"kind": "lengths", "meta": record.metadata(lib, args.commit), "results": results})
    wrong = sum(1 for r in results if r["problems"] or "error" in r)
    print(f"{len(results)} cases, {wrong} wrong, {left} not begun, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
