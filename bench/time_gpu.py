"""Times the suite beside FlexAttention, cuDNN and FlashAttention-2 in one run, in alternation, and the library's host side.

    python3 bench/time_gpu.py --out bench/results/time.json
    python3 bench/time_gpu.py --patterns full,causal --dims 128 --rounds 5 --no-flex

Every splat output is compared with float64 attention on sampled rows, and every peer's output with splat's, so that all
compute the same thing. The JSON is rewritten after each case: a run that is cut short loses one case.
"""
import argparse
import os
import sys
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import torch

import host_cost
import peers
import record
import reference
import splat_ctypes
import suite
import timing

DTYPES = {"bf16": (torch.bfloat16, splat_ctypes.BF16), "fp16": (torch.float16, splat_ctypes.FP16)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib")
    parser.add_argument("--out", default="time.json")
    parser.add_argument("--commit")
    parser.add_argument("--patterns", help="comma-separated names or their beginnings. Default: all")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sets", type=int, default=2, help="input sets that runs rotate among")
    parser.add_argument("--target-ms", type=float, default=12.0, help="length of one sample")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds after which no new case is begun")
    parser.add_argument("--tile", help="force a tile shape, as 128x64")
    parser.add_argument("--arch", type=int, default=0, help="0 = the device's own, 80, 90")
    for name in ("flex", "peers", "jax", "host", "ceilings"):
        parser.add_argument(f"--no-{name}", action="store_true")
    return parser.parse_args()


def chosen(args):
    if not args.patterns:
        return suite.SUITE
    exact = {p.name: p for p in suite.SUITE}
    picked = []
    for wanted in args.patterns.split(","):
        found = [exact[wanted]] if wanted in exact else [p for p in suite.SUITE if p.name.startswith(wanted)]
        if not found:
            sys.exit(f"no pattern starts with {wanted}; there are {', '.join(exact)}")
        picked += [p for p in found if p not in picked]
    return picked


class Bench:
    def __init__(self, args):
        self.args, self.began = args, time.monotonic()
        self.lib = splat_ctypes.Splat(args.lib)
        self.dtype, self.splat_dtype = DTYPES[args.dtype]
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
        torch.zeros(1, device="cuda")
        self.context = self.lib.context()
        self.data = {"kind": "time", "meta": record.metadata(self.lib, args.commit), "results": [],
                     "setup": {k: getattr(args, k) for k in ("batch", "heads", "seq", "dtype", "rounds", "sets",
                                                             "tile", "arch")}}

    def save(self):
        self.data["meta"]["seconds"] = time.monotonic() - self.began
        if "jax" in sys.modules:  # imported after the metadata was taken
            self.data["meta"]["jax"] = sys.modules["jax"].__version__
        record.write(self.args.out, self.data)

    def make_sets(self, dim):
        a = self.args
        return [tuple(torch.randn(a.batch, a.heads, a.seq, dim, device="cuda", dtype=self.dtype) for _ in range(3))
                + (torch.full((a.batch, a.heads, a.seq, dim), float("nan"), device="cuda", dtype=self.dtype),
                   torch.full((a.batch, a.heads, a.seq), float("nan"), device="cuda"))
                for _ in range(a.sets)]

    def splat(self, pattern, dim, sets, record_):
        """call(set index) for splat; fills what the plan and the compile say."""
        a = self.args
        options = dict(dtype=self.splat_dtype, head_dim=dim, batch=a.batch, heads=a.heads, arch=a.arch,
                       device=splat_ctypes.DEVICE_GPU)
        if a.tile:
            options["tile_rows"], options["tile_cols"] = (int(n) for n in a.tile.split("x"))
        mask = self.lib.expression(pattern.expression, a.seq)
        began = time.perf_counter()
        kernel = self.context.compile(mask, **options)
        record_["compile_ms"] = (time.perf_counter() - began) * 1e3
        record_["plan"], record_["kernel"] = kernel.plan_info(), kernel.info()
        record_["predicates"] = kernel.tiles_by_predicate()
        size = kernel.workspace_bytes(a.batch, a.heads)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
        calls = [self.lib.args(*s, workspace=workspace) for s in sets]

        def call(n):
            kernel.run(calls[n], torch.cuda.current_stream().cuda_stream)
            return sets[n][3]
        call.keep = (kernel, workspace)
        return call

    def check(self, pattern, shape, sets):
        """Problems of splat's output in every set on a few rows, against float64."""
        rows = torch.unique(torch.cat([torch.tensor([0, 1, self.args.seq - 1]),
                                       torch.randint(0, self.args.seq, (5,))])).cuda()
        allowed, problems = suite.rows_of(pattern, shape, rows, "cuda"), []
        for q, k, v, o, lse in sets:
            ref = reference.attention(q, k, v, allowed, rows, reference.default_scale(q))
            problems += reference.differences(o[:, :, rows], lse[:, :, rows], *ref, self.dtype)
        return problems

    def exact(self, pattern, shape, q, k, v):
        """Rows spread over the sequence, and what their outputs are in float64."""
        rows = torch.linspace(0, self.args.seq - 1, min(64, self.args.seq)).long().unique().cuda()
        allowed = suite.rows_of(pattern, shape, rows, "cuda")
        return rows, reference.attention(q, k, v, allowed, rows, reference.default_scale(q))[0]

    def case(self, pattern, dim, sets):
        a = self.args
        shape = suite.shape_of(self.lib, pattern, a.seq, device="cuda")
        out = {"pattern": pattern.name, "expression": pattern.expression, "dim": dim, "errors": {}, "agree": {}}
        pairs = suite.count_pairs(pattern, shape, "cuda")
        out["pairs"], out["density"] = pairs, pairs / a.seq**2
        for _, _, _, o, lse in sets:
            o.fill_(float("nan")), lse.fill_(float("nan"))
        calls = {}
        try:
            calls["splat"] = self.splat(pattern, dim, sets, out)
            for n in range(a.sets):
                calls["splat"](n)
            torch.cuda.synchronize()
            out["problems"] = self.check(pattern, shape, sets)
            if out["plan"]["allowed_pairs"] != pairs:
                out["problems"].append(f"the plan counts {out['plan']['allowed_pairs']} allowed pairs, not {pairs}")
        except splat_ctypes.SplatError as error:
            out["errors"]["splat"] = str(error)
        timed = [timing.Timed(name, call, a.sets) for name, call in calls.items()]
        timed += self.peers(pattern, shape, sets, out)
        out["times"] = timing.alternate(timed, a.rounds, a.target_ms)
        self.derive(out, dim)
        return out

    def peers(self, pattern, shape, sets, out):
        """The peers that serve this pattern; each one's output is compared with splat's and, for the
        patterns that dense kernels serve, all are with float64. What fails is recorded."""
        a, timed = self.args, []
        dense = not a.no_peers and pattern.name in ("full", "causal")
        if dense:
            rows, exact = self.exact(pattern, shape, *sets[0][:3])
            out["error"] = {"splat": reference.errors(sets[0][3][:, :, rows], exact)}

        def add(name, make, **kind):
            try:
                call, output = make()
                error = relative_error(output, sets[0][3])
                out["agree"][name] = error
                if dense:
                    out["error"][name] = reference.errors(output[:, :, rows], exact)
                timed.append(timing.Timed(name, call, a.sets, **kind))
            except Exception as error:
                out["errors"][name] = f"{type(error).__name__}: {str(error)[:300]}"

        def flex():
            call, out["flex_first_s"] = peers.flex(pattern, shape, sets)
            return call, call(0)

        def sdpa(backend):
            call = peers.sdpa(backend, pattern.name == "causal", sets)
            return call, call(0)

        if not a.no_flex:
            add("flex", flex)
        if dense:
            add("cudnn", lambda: sdpa("cudnn"))
            add("fa2", lambda: sdpa("fa2"))
        if not a.no_peers and not a.no_jax and pattern.name == "causal_window1024":
            add("cudnn_jax", lambda: peers.jax_window(1024, sets), wall=True)
        return timed

    def derive(self, out, dim):
        """Floor, ratios and rates, from this run's own ceilings."""
        a, top = self.args, self.data["ceilings"]
        out["floor_ms"], out["bound"] = suite.floor_ms(out["pairs"], a.batch, a.heads, a.seq, dim, top["matmul_flops"],
                                                       top["copy_bytes"])
        ms = out["times"].get("splat", {}).get("ms")
        others = {n: t["ms"] for n, t in out["times"].items() if n != "splat" and "ms" in t}
        if others:
            out["best_peer"] = min(others, key=others.get)
        if not ms:
            return
        work = 4.0 * a.batch * a.heads * dim / (ms * 1e-3) / 1e12
        out["ratio_to_floor"] = ms / out["floor_ms"]
        out["useful_tflops"], out["tile_tflops"] = work * out["pairs"], work * out["plan"]["computed_pairs"]
        out["predicted_over_measured"] = out["plan"]["predicted_us"] / (ms * 1e3)
        out["speedup"] = {n: t / ms for n, t in others.items()}

    def summary(self):
        for dim in self.args.dims:
            done = [r for r in self.data["results"] if r["dim"] == dim and "ratio_to_floor" in r]
            flexes = [r["times"]["flex"]["ms"] / r["floor_ms"] for r in done if "ms" in r["times"].get("flex", {})]
            if done:
                ratios = [r["ratio_to_floor"] for r in done]
                line = {"patterns": len(done), "splat_over_floor": suite.geometric_mean(ratios),
                        "worst": max(ratios), "flex_over_floor": suite.geometric_mean(flexes)}
                self.data.setdefault("summary", {})[f"d{dim}"] = line
                print(f"D {dim}: {line}", flush=True)


def relative_error(out, splat):
    a, b = out.float(), splat.float()
    return float((a - b).norm() / b.norm())


def print_case(out):
    def show(name):
        t = out["times"].get(name)
        return f"{name} {t['ms']:.3f}" if t and "ms" in t else f"{name} -"
    names = ["splat"] + [n for n in out["times"] if n != "splat"]
    ratio = out.get("ratio_to_floor")
    print(f"{out['pattern']:20} D {out['dim']:3}  floor {out['floor_ms']:.3f}  " + "  ".join(map(show, names)) +
          (f"  x{ratio:.2f} of floor, {out['tile_tflops']:.0f} tile TFLOP/s, predicted/measured "
           f"{out['predicted_over_measured']:.2f}" if ratio else ""), flush=True)
    for name, text in list(out["errors"].items()) + [("splat is wrong", p) for p in out.get("problems", [])]:
        print(f"    {name}: {text[:200]}", flush=True)
    for name, error in out.get("error", {}).items():
        print(f"    error of {name}: max {error['max']:.3g}, Frobenius {error['frobenius']:.3g}", flush=True)
    for name, error in out["agree"].items():
        if not error < 2e-2:
            print(f"    {name} and splat differ by {error:.3g}", flush=True)


def main():
    args = arguments()
    bench = Bench(args)
    data = bench.data
    data["ceilings"] = ({"matmul_flops": 751e12, "copy_bytes": 4.26e12, "assumed": True} if args.no_ceilings
                        else timing.ceilings())
    print(f"matmul {data['ceilings']['matmul_flops'] / 1e12:.0f} TFLOP/s, copy "
          f"{data['ceilings']['copy_bytes'] / 1e12:.2f} TB/s", flush=True)
    if not args.no_host:
        data["host"] = host_cost.measure(bench.lib, args.lib)
        print(host_cost.describe(data["host"]), flush=True)
    skipped = []
    for dim in args.dims:
        sets = bench.make_sets(dim)
        for pattern in chosen(args):
            if time.monotonic() - bench.began > args.budget:
                skipped.append(f"{pattern.name} D {dim}")
                continue
            data["results"].append(bench.case(pattern, dim, sets))
            print_case(data["results"][-1])
            bench.save()
        del sets
        torch.cuda.empty_cache()
    bench.summary()
    if not args.no_ceilings:
        data["ceilings_after"] = timing.ceilings(3)
    data["not_begun"] = skipped
    bench.save()
    if skipped:
        print(f"out of time before {len(skipped)} cases: {', '.join(skipped)}")
    wrong = sum(1 for r in data["results"] if r.get("problems") or "splat" in r["errors"])
    print(f"{len(data['results'])} cases, {wrong} wrong, {time.monotonic() - bench.began:.0f} s, written to {args.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
