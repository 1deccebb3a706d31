"""What the host pays: one splat_run, a repeat of splat_compile, a first compile, and a second process's load from disk.

Measured through ctypes; the cost of a ctypes call that does nothing is measured beside it and reported.
    python3 bench/host_cost.py --load DIR     (the second process: prints its milliseconds)
"""
import argparse
import statistics
import subprocess
import sys
import tempfile
import time

import splat_ctypes

EXPRESSION, OTHER = "causal & (window(300, 0) | cols(0, 7))", "window(5)"
OPTIONS = dict(dtype=splat_ctypes.BF16, head_dim=64, batch=1, heads=1, device=splat_ctypes.DEVICE_GPU)
OTHER_OPTIONS = dict(OPTIONS, head_dim=128)  # another kernel: it only makes the CUDA context


def each_us(count, function, repeats=5):
    """Microseconds a call: the median of `repeats` stretches of `count` calls."""
    samples = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(count):
            function()
        samples.append((time.perf_counter() - began) / count * 1e6)
    return statistics.median(samples)


def ms(function):
    began = time.perf_counter()
    result = function()
    return (time.perf_counter() - began) * 1e3, result


def run_cost(lib, context):
    """splat_run on the stream without waiting: a problem so small that the queue never fills."""
    import torch
    kernel = context.compile(lib.expression("causal", 128), **OPTIONS)
    q, k, v, o = (torch.randn(1, 1, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    lse = torch.empty(1, 1, 128, device="cuda")
    size = kernel.workspace_bytes(1, 1)
    args = lib.args(q, k, v, o, lse, workspace=torch.empty(size, dtype=torch.uint8, device="cuda") if size else None)
    stream, samples = torch.cuda.current_stream().cuda_stream, []
    for _ in range(9):
        torch.cuda.synchronize()
        samples.append(each_us(200, lambda: kernel.run(args, stream), repeats=1))
    torch.cuda.synchronize()
    mask = lib.expression("causal", 128)
    return {"run_us": statistics.median(samples), "run_min_us": min(samples),
            "empty_call_us": each_us(2000, lambda: lib.c.splat_mask_q_len(mask.p))}


def compile_cost(lib, context):
    """A repeat with the same mask, and with a mask made anew from its expression."""
    mask = lib.expression(EXPRESSION, 8192)
    context.compile(mask, **OPTIONS)

    def anew():
        context.compile(lib.expression(EXPRESSION, 8192), **OPTIONS)
    keep = context.compile(mask, **OPTIONS)
    result = {"compile_repeat_us": each_us(200, lambda: context.compile(mask, **OPTIONS)),
              "compile_repeat_new_mask_us": each_us(200, anew)}
    del keep
    return result


def first_compile(lib, folder):
    context = lib.context(cache_dir=folder, cache_mode=splat_ctypes.CACHE_ON)
    context.compile(lib.expression(OTHER, 8192), **OTHER_OPTIONS)
    first, kernel = ms(lambda: context.compile(lib.expression(EXPRESSION, 8192), **OPTIONS))
    return {"first_compile_ms": first, "first_was_hit": kernel.info()["cache_hit"]}


def load_cost(lib, lib_path):
    """First compile into an empty cache folder, then a second process that finds it there."""
    with tempfile.TemporaryDirectory() as folder:
        result = first_compile(lib, folder)
        command = [sys.executable, __file__, "--load", folder] + (["--lib", lib_path] if lib_path else [])
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        result["second_process_error"] = (done.stdout + done.stderr)[-400:]
    else:
        load, hit = done.stdout.split()[-2:]
        result["second_process_ms"], result["second_was_hit"] = float(load), int(hit)
    return result


def measure(lib, lib_path=None):
    context, result = lib.context(), {}
    for part in (lambda: run_cost(lib, context), lambda: compile_cost(lib, context), lambda: load_cost(lib, lib_path)):
        try:
            result.update(part())
        except Exception as error:
            result.setdefault("errors", []).append(f"{type(error).__name__}: {error}")
    return result


def describe(host):
    return "host: " + ", ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in host.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib")
    parser.add_argument("--load", required=True, help="cache folder that holds the kernel")
    args = parser.parse_args()
    lib = splat_ctypes.Splat(args.lib)
    context = lib.context(cache_dir=args.load, cache_mode=splat_ctypes.CACHE_ON)
    context.compile(lib.expression(OTHER, 8192), **OTHER_OPTIONS)  # makes the CUDA context, which is not what is timed
    load, kernel = ms(lambda: context.compile(lib.expression(EXPRESSION, 8192), **OPTIONS))
    print(load, kernel.info()["cache_hit"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
