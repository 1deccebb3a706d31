"""Checks Kronecker-sparse layers on the GPU (or, with --device cpu, the CPU engine) against float64 products.

Every tensor lies between NaN and has NaN between its rows; outputs and workspace are poisoned before each run. Each case is
run forward and backward twice: results must repeat bit for bit. --jobs processes share the cases. Prints a line a case that fails and `N passed, M failed` last.

    python3 bench/check_layers.py --out layers-check.json
    python3 bench/check_layers.py --quick          # a sample
"""
import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "python"))
import layer_suite as suite
import record
from splat import layer as splat_layer

NAN = float("nan")
NUMBERS = {"float16": 0, "bfloat16": 1, "float32": 2}
ODD = [(1, 1, 1, 1), (2, 5, 7, 3), (1, 128, 128, 3), (3, 11, 13, 1), (1, 8, 12, 12), (2, 24, 40, 2), (5, 3, 300, 6),
       (7, 100, 20, 8), (1, 16, 16, 16), (2, 40, 8, 4), (1, 700, 17, 1), (2, 48, 192, 1)]
CHAINS = [[(2 ** (9 - s), 2, 2, 2**s) for s in range(10)], [(6, 64, 64, 1), (1, 768, 192, 2)], [(6, 64, 256, 1), (1, 128, 128, 3)],
          [(32, 32, 32, 1), (1, 32, 32, 32)], [(4, 6, 8, 1), (1, 12, 4, 6)]]
# Relative error of one rounding; products in tf32 lose their operands' last bits, and sums of fp32 theirs.
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8, "tf32": 2.0**-10, "fp32": 2.0**-19}


def guarded(rows, width, gap, shift, dtype, device):
    """A [rows, width] view with NaN around it, `gap` elements between rows, `shift` elements off alignment."""
    buffer = torch.full((64 + shift + rows * (width + gap) + 64,), NAN, dtype=dtype, device=device)
    return buffer[64 + shift:][: rows * (width + gap)].view(rows, width + gap)[:, :width], buffer


def dense_step(h, w, f):
    a, b, c, d = f
    return torch.einsum("nilj,ikjl->nikj", h.reshape(-1, a, c, d), w).reshape(-1, a * b * d)


class Case:
    def __init__(self, factors, n, expected, kind, layout, gap, shift, bias):
        self.factors, self.n, self.expected, self.kind, self.layout = factors, n, expected, kind, layout
        self.gap, self.shift, self.bias = gap, shift, bias

    def __str__(self):
        chain = " ".join(f"({suite.name_of(f)})" for f in self.factors)
        return f"{chain} n {self.n} (tiles for {self.expected}) {self.kind} {self.layout} gap {self.gap} shift {self.shift} bias {int(self.bias)}"

    def activations(self, features, device, fill):
        dtype = getattr(torch, suite.TYPES[self.kind][0])
        first = self.layout == "batch_first"
        view, buffer = guarded(*((self.n, features) if first else (features, self.n)), self.gap, self.shift, dtype, device)
        if fill:
            view.copy_(torch.randn(view.shape, device=device))
        return view, buffer, (features if first else self.n) + self.gap

    def plain(self, x):
        """[n, features] in float64."""
        return (x if self.layout == "batch_first" else x.t()).double()

    def run(self, device):
        dtype, _, tf32 = suite.TYPES[self.kind]
        gpu = device.type == "cuda"
        layer = splat_layer.CompiledLayer(self.factors, NUMBERS[dtype], splat_layer.LAYOUTS[self.layout], tf32, self.expected, True,
                                          (device.index or 0) if gpu else -1)
        dtype = getattr(torch, dtype)
        x, _, x_stride = self.activations(layer.inputs, device, True)
        dy, _, dy_stride = self.activations(layer.outputs, device, True)
        weights = [torch.randn((a, b, d, c), device=device).div(c**0.5).to(dtype) for a, b, c, d in self.factors]
        bias = torch.randn(layer.outputs, device=device).to(dtype) if self.bias else None
        size = layer.workspace_bytes(self.n, True)
        results = []
        for _ in range(2):
            y, y_buffer, y_stride = self.activations(layer.outputs, device, False)
            dx, dx_buffer, dx_stride = self.activations(layer.inputs, device, False)
            gradients = [guarded(1, w.numel(), 0, self.shift, dtype, device) for w in weights]
            memory = torch.full((size + 512,), 255, dtype=torch.uint8, device=device)
            pointers = [w.data_ptr() for w in weights]
            fields = {"workspace": (memory.data_ptr() + 255) & -256, "workspace_bytes": size}
            stream = torch.cuda.current_stream().cuda_stream if gpu else None
            layer.run(False, stream, self.n, pointers, x=x.data_ptr(), x_stride=x_stride, y=y.data_ptr(), y_stride=y_stride,
                      bias=None if bias is None else bias.data_ptr(), **fields)
            layer.run(True, stream, self.n, pointers, [g[0].data_ptr() for g in gradients], x=x.data_ptr(), x_stride=x_stride,
                      dy=dy.data_ptr(), dy_stride=dy_stride, dx=dx.data_ptr(), dx_stride=dx_stride, **fields)
            results.append([(y, y_buffer), (dx, dx_buffer), *gradients])
        if gpu:
            torch.cuda.synchronize()
        names = ["y", "dx", *(f"dW{f}" for f in range(len(weights)))]
        for name, (one, one_buffer), (two, two_buffer) in zip(names, *results):
            if not torch.equal(one_buffer.view(torch.uint8), two_buffer.view(torch.uint8)):
                return f"{name} differs from run to run"
            outside = one_buffer.isnan().sum().item() - one.isnan().sum().item()
            if outside != one_buffer.numel() - one.numel():
                return f"{name} was written outside"
        return self.compare(names, results[0], x, dy, weights, bias)

    def compare(self, names, results, x, dy, weights, bias):
        values, reaches = [self.plain(x)], [self.plain(x).abs()]
        w64 = [w.double() for w in weights]
        for f, w in zip(self.factors, w64):
            values.append(dense_step(values[-1], w, f))
            reaches.append(dense_step(reaches[-1], w.abs(), f))
        wants = [(values[-1] + (0 if bias is None else bias.double()), reaches[-1] + (0 if bias is None else bias.double().abs()))]
        g, g_reach, of_weights = self.plain(dy), self.plain(dy).abs(), []
        for k in reversed(range(len(w64))):
            (a, b, c, d), w = self.factors[k], w64[k]
            back = lambda h, m: torch.einsum("nikj,ikjl->nilj", h.reshape(-1, a, b, d), m).reshape(-1, a * c * d)
            product = lambda h, v: torch.einsum("nikj,nilj->ikjl", h.reshape(-1, a, b, d), v.reshape(-1, a, c, d)).reshape(1, -1)
            of_weights.append((product(g, values[k]), product(g_reach, reaches[k])))
            g, g_reach = back(g, w), back(g_reach, w.abs())
        wants += [(g, g_reach), *reversed(of_weights)]
        for number, (name, (got, _), (want, reach)) in enumerate(zip(names, results, wants)):
            got = self.plain(got) if number < 2 else got.double()
            limit = 1.2 * ROUNDING[self.kind] * len(self.factors) * reach + (1e-6 if self.kind == "fp16" else 1e-30)
            if self.kind == "fp16" and (want.abs() > 60000).any():
                continue
            worst = ((got - want).abs() / limit).nan_to_num(nan=float("inf")).max().item()
            if not worst <= 1:
                return f"{name} is off by {worst:.3g} times the tolerance"
        return None


def cases(quick):
    made, turn = [], itertools.count()
    shapes = [[f] for f in suite.FACTORS + ODD] + CHAINS
    for factors, kind, layout in itertools.product(shapes, suite.TYPES, suite.LAYOUTS):
        widest = max(max(suite.inputs(f), suite.outputs(f)) for f in factors)
        for n in (1000, 256, 37, 1):
            k = next(turn)
            if widest * n > 13_000_000 or (quick and k % 7):
                continue
            # Tiles for many samples or for few. Aligned rows, rows at odd distances, and data off alignment in turn.
            made.append(Case(factors, n, (25088, 256)[k % 8 // 4], kind, layout, (0, 8, 3)[k % 3], (0, 0, 0, 1)[k % 4], k % 2 == 0))
    return made


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes; most time goes into compiling kernels")
    parser.add_argument("--seconds", type=float, default=500, help="stop after so long; what is left is said")
    parser.add_argument("--match", help="only cases whose description holds this")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_part(args):
    part, parts = map(int, args.part.split("/"))
    torch.manual_seed(args.seed + part)
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.zeros(1, device=device)
    began, passed, failures = time.monotonic(), 0, []
    chosen = [c for c in cases(args.quick) if not args.match or args.match in str(c)][part::parts]
    for number, case in enumerate(chosen):
        if time.monotonic() - began > args.seconds:
            failures.append(f"{len(chosen) - number} cases were not run in {args.seconds:.0f} s")
            print(failures[-1])
            break
        try:
            fault = case.run(device)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        if fault:
            failures.append(f"{case}: {fault}")
            print(f"FAILED {case}: {fault}", flush=True)
            if "CUDA" in fault and "illegal" in fault:
                break
        passed += not fault
    return {"passed": passed, "failures": failures, "seconds": time.monotonic() - began}


def run_parts(args, folder):
    """Each part in a process of its own: a fault of the device ends one alone."""
    files = [os.path.join(folder, f"{k}.json") for k in range(args.jobs)]
    flags = [f"--device={args.device}", f"--seed={args.seed}", f"--seconds={args.seconds}"]
    flags += ["--quick"] * args.quick + [f"--match={args.match}"] * bool(args.match)
    running = [subprocess.Popen([sys.executable, os.path.abspath(__file__), *flags, f"--part={k}/{args.jobs}", f"--out={f}"])
               for k, f in enumerate(files)]
    whole = {"passed": 0, "failures": [], "seconds": 0.0}
    for process, file in zip(running, files):
        process.wait()
        if not os.path.exists(file):
            whole["failures"].append(f"a process ended with {process.returncode} and no result")
            continue
        with open(file, encoding="utf-8") as stream:
            part = json.load(stream)
        whole["passed"] += part["passed"]
        whole["failures"] += part["failures"]
        whole["seconds"] = max(whole["seconds"], part["seconds"])
    return whole


def main():
    args = arguments()
    if args.jobs > 1:
        with tempfile.TemporaryDirectory() as folder:
            result = run_parts(args, folder)
    else:
        result = run_part(args)
    if args.out:
        record.write(args.out, {**result, "seed": args.seed, "device": args.device, "commit": record.commit_of()})
    if args.part == "0/1":
        print(f"{result['passed']} passed, {len(result['failures'])} failed")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
