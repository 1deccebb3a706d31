"""Checks the Python package with PyTorch and JAX on a GPU, and times it beside FlexAttention and jax.nn.

Correctness is against float64 attention (reference.py, masks from suite.py's own definitions). Each framework runs in a process
of its own. Prints a short table and `N passed, M failed`; writes everything to --out. Exit status 1 when anything failed.

    SPLAT_LIB=build/libsplat.so python3 bench/check_python.py --out bench/results/python.json
    SPLAT_LIB=build/libsplat.so python3 bench/check_python.py --device cpu --quick        the checks that need no GPU

The package is taken from python/; nothing need be installed. splat.jax compiles its custom call with the C compiler at the
first import, unless SPLAT_JAX_SHIM names one that `python3 -m splat._xla_build FILE` has built.
"""
import argparse
import ctypes
import gc
import json
import logging
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench")]
os.environ.setdefault("SPLAT_LIB", str(ROOT / "build" / "libsplat.so"))
OVERHEAD_LIMIT_US = 15.0
TIMED = ("causal", "causal_window1024", "longformer256_g64", "bigbird64", "st_fixed128_16")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--parts", default="torch,jax", help="comma-separated: torch, jax")
    parser.add_argument("--quick", action="store_true", help="fewer cases and no timing of large ones")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seq", type=int, default=8192)
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=220, help="seconds of a part after which no new case is timed")
    parser.add_argument("--part-timeout", type=int, default=285, help="seconds after which a part counts as hung")
    parser.add_argument("--commit")
    parser.add_argument("--out", help="JSON file (default: check_python.json in $OUT, when that is set)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    return parser.parse_args()


class Checks:
    """Counts checks; a check passes when its function returns no problems. `save` keeps what there is for the parent."""

    def __init__(self, options):
        self.passed, self.failures, self.skipped, self.numbers = 0, [], [], {}
        self.path, self.began, self.budget = options.result, time.monotonic(), options.budget

    def over_budget(self):
        return time.monotonic() - self.began > self.budget

    def save(self):
        with open(self.path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(self.result(), file, default=str)
        os.replace(self.path + ".tmp", self.path)

    def check(self, label, function, *args):
        try:
            problems = function(*args) or []
        except Exception as error:
            problems = [f"{type(error).__name__}: {error} | " + traceback.format_exc(limit=-4).replace("\n", " | ")]
        if problems:
            self.failures.append(f"{label}: {'; '.join(map(str, problems))[:1500]}")
        else:
            self.passed += 1

    def measure(self, name, function, *args):
        """Keeps what the function returns under a name; an exception is a failure."""
        try:
            self.numbers[name] = function(*args)
        except Exception as error:
            self.failures.append(f"{name}: {type(error).__name__}: {str(error)[:600]}")
        self.save()

    def result(self):
        return {"passed": self.passed, "failures": self.failures, "skipped": self.skipped, **self.numbers}


class Counter(logging.Handler):
    """Counts log messages in a dict."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers = numbers

    def emit(self, record):
        self.numbers["log_messages"] = self.numbers.get("log_messages", 0) + 1


def raises(kind, words, function, *args, **named):
    """Problems unless the call raises such an exception with such words."""
    try:
        function(*args, **named)
    except kind as error:
        return [] if words in str(error) else [f"the sentence is {str(error)[:300]!r}, without {words!r}"]
    except Exception as error:
        return [f"{type(error).__name__} in place of {kind.__name__}: {str(error)[:300]}"]
    return [f"no {kind.__name__}"]


def median_us(function, count, repeats=9, before=lambda: None):
    samples = []
    for _ in range(repeats):
        before()
        began = time.perf_counter()
        for _ in range(count):
            function()
        samples.append((time.perf_counter() - began) / count * 1e6)
    return {"median_us": statistics.median(samples), "min_us": min(samples)}


# ---- PyTorch ----


class Torch:
    def __init__(self, options):
        import torch

        import reference
        import splat
        import splat.torch
        import splat_ctypes
        import suite
        self.torch, self.splat, self.reference, self.suite = torch, splat, reference, suite
        self.options, self.gpu, self.device = options, options.device == "cuda", options.device
        self.checks, self.attention = Checks(options), splat.torch.attention
        self.lib = splat_ctypes.Splat(os.environ["SPLAT_LIB"])
        self.generator = torch.Generator(device=self.device).manual_seed(0)

    def random(self, *shape, dtype=None):
        x = self.torch.randn(*shape, generator=self.generator, device=self.device)
        return x.to(dtype or self.torch.bfloat16)

    def qkv(self, batch=2, heads=4, length=300, dim=64, kv_heads=None, kv_len=None, value_dim=None, dtype=None):
        kv = (batch, kv_heads or heads, kv_len or length)
        return (self.random(batch, heads, length, dim, dtype=dtype), self.random(*kv, dim, dtype=dtype),
                self.random(*kv, value_dim or dim, dtype=dtype))

    def sync(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def differences(self, o, lse, q, k, v, allowed, scale=None):
        allowed = self.torch.as_tensor(allowed, device=self.device)
        rows = self.torch.arange(q.shape[2], device=self.device)
        want = self.reference.attention(q, k, v, allowed, rows, scale or self.reference.default_scale(q))
        return self.reference.differences(o, lse, *want, q.dtype)

    def compare(self, mask, allowed, q, k, v, scale=None):
        o, lse = self.attention(q, k, v, mask, scale, return_lse=True, enable_gqa=True)
        self.sync()
        problems = self.differences(o, lse, q, k, v, allowed, scale)
        alone = self.attention(q, k, v, mask, scale=scale, enable_gqa=True)
        return problems if self.torch.equal(alone, o) else problems + ["o differs when lse is not wanted"]

    # Correctness.

    def layouts(self, x):
        torch, (batch, heads, rows, dim) = self.torch, x.shape
        packed = torch.full((batch, rows, 3, heads, dim), float("nan"), dtype=x.dtype, device=x.device)
        packed[:, :, 1] = x.transpose(1, 2)
        odd = torch.full((batch, heads, rows, dim + 3), float("nan"), dtype=x.dtype, device=x.device)
        odd[..., :dim] = x
        shifted = torch.full((x.numel() + 1,), float("nan"), dtype=x.dtype, device=x.device)
        shifted[1:] = x.reshape(-1)
        return {"bhsd": x, "bshd": x.transpose(1, 2).contiguous().transpose(1, 2), "packed": packed[:, :, 1].transpose(1, 2),
                "odd strides": odd[..., :dim], "dim first": x.transpose(2, 3).contiguous().transpose(2, 3),
                "misaligned": shifted[1:].view(x.shape)}

    def correctness(self):
        torch, splat, suite = self.torch, self.splat, self.suite
        dtypes = (torch.float16, torch.bfloat16) if self.gpu else (torch.float32, torch.bfloat16)
        for dtype in dtypes:
            for dim in (64, 128):
                for pattern in suite.SMALL[:: 4 if self.options.quick else 1]:
                    q, k, v = self.qkv(length=300, dim=dim, dtype=dtype)
                    allowed = suite.rows_of(pattern, suite.shape_of(self.lib, pattern, 300), range(300))
                    mask = splat.pattern(pattern.expression)
                    self.checks.check(f"{pattern.name} {dtype} D {dim}", self.compare, mask, allowed, q, k, v)
        causal = torch.ones(300, 300, dtype=torch.bool).tril()
        mask = splat.causal()
        q, k, v = self.qkv()
        for name, views in zip(self.layouts(q), zip(*(self.layouts(x).values() for x in (q, k, v)))):
            self.checks.check(f"layout {name}", self.compare, mask, causal, *views)
        for name in self.layouts(q):
            self.checks.check(f"layout of k alone: {name}", self.compare, mask, causal, q, self.layouts(k)[name], v)
        expanded = [x[:, :1].expand(-1, 4, -1, -1) for x in (k, v)]
        self.checks.check("expanded keys", self.compare, mask, causal, q, *expanded)
        self.checks.check("batch expanded", self.compare, mask, causal, q, *(x[:1].expand(2, -1, -1, -1) for x in (k, v)))
        for kv_heads in (1, 2):
            self.checks.check(f"4 heads on {kv_heads}", self.compare, mask, causal, *self.qkv(kv_heads=kv_heads))
        self.checks.check("dims 72 and 40", self.compare, mask, causal, *self.qkv(dim=72, value_dim=40))
        self.checks.check("scale", self.compare, mask, causal, q, k, v, 0.31)
        wide = self.qkv(length=70, kv_len=300)
        self.checks.check("70 x 300", self.compare, mask, torch.ones(70, 300, dtype=torch.bool).tril(230), *wide)
        generator = torch.Generator().manual_seed(1)
        for shape in ((300, 300), (4, 300, 300), (2, 4, 300, 300)):
            array = torch.rand(shape, generator=generator) < 0.2
            dense = splat.from_dense(array.numpy())
            self.checks.check(f"dense {shape}", self.compare, dense, array if array.dim() != 3 else array[None], q, k, v)
        if self.gpu:
            x = q.float()
            self.checks.check("float32 refused", raises, splat.UnsupportedError, "fp32", self.attention, x, x, x, "full")
            self.checks.check("devices mixed", raises, ValueError, "device is", self.attention, q, k.cpu(), v, "full")
        self.checks.check("gradient refused", raises, splat.UnsupportedError, "backward",
                          self.attention, q.clone().requires_grad_(), k, v, "full")

    # Streams, threads, graphs.

    def on_another_stream(self):
        """The inputs are written late on a side stream; attention there must wait for them, and only there."""
        torch, stream = self.torch, self.torch.cuda.Stream()
        q, k, v = self.qkv()
        want = self.attention(q, k, v, "causal")
        late = [torch.full_like(x, float("nan")) for x in (q, k, v)]
        self.sync()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            for x, y in zip(late, (q, k, v)):
                x.copy_(y)
            o = self.attention(*late, "causal")
            running = not stream.query()
        stream.synchronize()
        problems = [] if torch.equal(o, want) else ["o is not that of the inputs"]
        return problems if running else problems + ["the call returned after its inputs were ready: it synchronised"]

    def in_a_new_thread(self):
        q, k, v = self.qkv()
        want, problems = self.attention(q, k, v, "causal"), []
        self.sync()

        def work():
            try:
                if not self.torch.equal(self.attention(q, k, v, "causal"), want):
                    problems.append("o differs")
                mask = self.splat.causal() & self.splat.window(7, 0)  # compiles in this thread
                self.attention(q, k, v, mask)
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")

        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        return problems

    def on_the_second_device(self):
        """Tensors on cuda:1 while cuda:0 is current: computed there, and cuda:0 stays current."""
        torch = self.torch
        if torch.cuda.device_count() < 2:
            self.checks.skipped.append("a second device: there is one GPU")
            return []
        q, k, v = self.qkv()
        want = self.attention(q, k, v, "causal")
        got = self.attention(*(x.to("cuda:1") for x in (q, k, v)), "causal")
        right = got.device.index == 1 and torch.cuda.current_device() == 0 and torch.equal(got.to("cuda:0"), want)
        return [] if right else [f"o is on {got.device}, the current device is {torch.cuda.current_device()}, or o differs"]

    def graph(self):
        """Captured, then replayed on new inputs and after the mask is gone; bitwise what a plain call gives."""
        torch = self.torch
        q, k, v = self.qkv()
        allowed = torch.rand(300, 300, generator=torch.Generator().manual_seed(2)) < 0.3
        mask = self.splat.from_dense(allowed.numpy())
        self.attention(q, k, v, mask, return_lse=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o, lse = self.attention(q, k, v, mask, return_lse=True)
        problems = []
        for turn in range(3):
            for x in (q, k, v):
                x.copy_(self.random(*x.shape))
            graph.replay()
            self.sync()
            problems += self.differences(o, lse, q, k, v, allowed)
            if turn == 1:
                del mask
                gc.collect()
                self.attention(q, k, v, self.splat.causal() & self.splat.window(11, 0))  # gives back what is not needed
        return problems

    def first_call_in_a_capture(self):
        """Refused before anything that would break the capture is done."""
        torch = self.torch
        q, k, v = self.qkv()
        mask, graph, problems = self.splat.causal() & self.splat.window(13, 0), torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            y = q * 2
            problems += raises(RuntimeError, "before the capture", self.attention, q, k, v, mask)
        graph.replay()
        self.sync()
        return problems if torch.equal(y, q * 2) else problems + ["the capture was broken"]

    # torch.compile.

    def compiled(self, mode, dynamic):
        torch, mask = self.torch, self.splat.causal() & self.splat.window(99, 0)
        torch._dynamo.reset()

        def layer(x):
            q, k, v = (y.transpose(1, 2) for y in x.unbind(2))
            return self.attention(q * 1.5, k, v, mask).transpose(1, 2).reshape(x.shape[0], x.shape[1], -1) + 1

        call = torch.compile(layer, fullgraph=True, mode=mode, dynamic=dynamic)
        problems = []
        for length in (300, 300, 300, 256):
            x = self.random(2, length, 3, 4, 64)
            got = call(x).clone()
            error = (got.float() - layer(x).float()).abs().max().item()
            problems += [] if error < 0.03 else [f"differs from eager by {error} at length {length}"]
        breaks = torch._dynamo.explain(layer)(self.random(2, 300, 3, 4, 64)).graph_break_count
        return problems if breaks == 0 else problems + [f"{breaks} graph breaks"]

    # Host side.

    def overhead(self):
        """Microseconds of a warm eager call beyond splat_run with arguments made before: both only enqueue."""
        torch = self.torch
        q, k, v = self.qkv(batch=1, heads=1, length=128)
        mask = self.splat.causal()
        from splat import torch as module
        self.attention(q, k, v, mask)
        launch = next(iter(mask._launches.values()))
        args, o = module._copy_args(launch.args), torch.empty_like(q)
        args.q.data, args.k.data, args.v.data, args.o.data = (x.data_ptr() for x in (q, k, v, o))
        stream = torch.cuda.current_stream().cuda_stream if self.gpu else None
        key = mask.key
        calls = {
            "splat_run": lambda: module._run(launch.kernel.pointer, ctypes.byref(args), stream),
            "attention": lambda: self.attention(q, k, v, mask),
            "attention_lse": lambda: self.attention(q, k, v, mask, return_lse=True),
            "operator": lambda: torch.ops.splat.attention(q, k, v, key),
            "scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        }
        for call in calls.values():
            call()
        result = {name: median_us(call, 200, before=self.sync) for name, call in calls.items()}
        self.sync()
        result["overhead_us"] = result["attention"]["median_us"] - result["splat_run"]["median_us"]
        return result

    def overhead_is_small(self):
        over = self.checks.numbers["host"]["overhead_us"]
        small = over <= OVERHEAD_LIMIT_US
        return [] if small else [f"a warm call takes {over:.1f} us over splat_run (limit {OVERHEAD_LIMIT_US})"]

    def graph_overhead(self):
        """Microseconds a launch in a graph of 50, through the package and through splat_run."""
        torch = self.torch
        q, k, v = self.qkv(batch=1, heads=1, length=128)
        from splat import torch as module
        mask = self.splat.causal()
        self.attention(q, k, v, mask)
        launch = next(iter(mask._launches.values()))
        args, o = module._copy_args(launch.args), torch.empty_like(q)
        args.q.data, args.k.data, args.v.data, args.o.data = (x.data_ptr() for x in (q, k, v, o))

        def raw():
            module._run(launch.kernel.pointer, ctypes.byref(args), torch.cuda.current_stream().cuda_stream)

        result = {}
        for name, call in (("package", lambda: self.attention(q, k, v, mask)), ("splat_run", raw)):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(50):
                    call()
            graph.replay()
            samples, (start, end) = [], (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(9):
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                samples.append(start.elapsed_time(end) * 1e3 / 50)
            result[f"{name}_us"] = statistics.median(samples)
        return result

    # Speed.

    def speed(self):
        import peers
        import timing
        o, rows = self.options, self.checks.numbers.setdefault("speed", [])
        for dim in map(int, o.dims.split(",")):
            sets = [self.qkv(o.batch, o.heads, o.seq, dim) for _ in range(2)]
            for pattern in (p for p in self.suite.SUITE if p.name in TIMED):
                if self.checks.over_budget():
                    self.checks.skipped.append(f"timing of {pattern.name} at D {dim}: out of time")
                    continue
                mask = self.splat.pattern(pattern.expression)
                shape = self.suite.shape_of(self.lib, pattern, o.seq, device="cuda")
                row = {"pattern": pattern.name, "dim": dim}
                items = [timing.Timed("splat", lambda n: self.attention(*sets[n], mask), 2)]
                try:
                    call, row["flex_first_s"] = peers.flex(pattern, shape, sets)
                    items.append(timing.Timed("flex", call, 2))
                    a, b = self.attention(*sets[0], mask).float(), call(0).float()
                    row["flex_agrees"] = float((a - b).norm() / b.norm())
                except Exception as error:
                    row["flex_error"] = f"{type(error).__name__}: {str(error)[:200]}"
                row["times"] = timing.alternate(items, o.rounds)
                rows.append(row)
                self.checks.save()
                print(f"  torch {line(row)}", flush=True)
        return rows

    def run(self):
        import record
        checks = self.checks
        checks.numbers["meta"] = record.metadata(self.lib, self.options.commit)
        self.correctness()
        if self.gpu:
            for name in ("on_another_stream", "in_a_new_thread", "on_the_second_device", "graph", "first_call_in_a_capture"):
                checks.check(name.replace("_", " "), getattr(self, name))
        for mode, dynamic in ((None, False), (None, True), ("reduce-overhead", False)):
            if self.gpu or mode is None:
                checks.check(f"torch.compile mode {mode} dynamic {dynamic}", self.compiled, mode, dynamic)
        checks.measure("host", self.overhead)
        if self.gpu:
            checks.check("overhead of a warm call", self.overhead_is_small)
            checks.measure("graph_launch", self.graph_overhead)
            if not self.options.quick:
                checks.measure("speed", self.speed)
        else:
            checks.skipped.append("streams, graphs and speed: no GPU")
        checks.save()


# ---- JAX ----


class Jax:
    def __init__(self, options):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        if options.device == "cpu":
            os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import jax.numpy as jnp
        import numpy as np
        import torch

        import reference
        import splat
        import splat.jax
        import splat_ctypes
        import suite
        self.jax, self.jnp, self.np, self.torch, self.splat = jax, jnp, np, torch, splat
        self.reference, self.suite, self.options, self.gpu = reference, suite, options, options.device == "cuda"
        self.checks, self.attention = Checks(options), splat.jax.attention
        self.lib = splat_ctypes.Splat(os.environ["SPLAT_LIB"])
        self.keys = jax.random.key(0)
        # Compiles are told from XLA's threads: a call into Python there must not wait for what waits for it.
        log = logging.getLogger("splat")
        log.setLevel(logging.INFO)
        log.addHandler(Counter(self.checks.numbers))
        self.half = jnp.bfloat16

    def random(self, *shape, dtype=None):
        self.keys, key = self.jax.random.split(self.keys)
        return self.jax.random.normal(key, shape, self.jnp.float32).astype(dtype or self.half)

    def qkv(self, batch=2, heads=4, length=300, dim=64, kv_heads=None, kv_len=None, value_dim=None, dtype=None):
        kv = (batch, kv_heads or heads, kv_len or length)
        return (self.random(batch, heads, length, dim, dtype=dtype), self.random(*kv, dim, dtype=dtype),
                self.random(*kv, value_dim or dim, dtype=dtype))

    def differences(self, o, lse, q, k, v, allowed, scale=None):
        torch = self.torch
        names = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

        def tensor(x):
            return torch.from_numpy(self.np.asarray(x.astype(self.jnp.float32)).copy()).to(names[x.dtype.name])

        q, k, v, o = (tensor(x) for x in (q, k, v, o))
        lse = None if lse is None else torch.from_numpy(self.np.asarray(lse).copy())
        want = self.reference.attention(q, k, v, torch.as_tensor(allowed), torch.arange(q.shape[2]),
                                        scale or self.reference.default_scale(q))
        return self.reference.differences(o, lse, *want, q.dtype)

    def compare(self, mask, allowed, q, k, v, layout="bhsd", scale=None):
        turn = (lambda x: x.transpose(0, 2, 1, 3)) if layout == "bshd" else (lambda x: x)
        call = self.jax.jit(lambda q, k, v: self.attention(q, k, v, mask, scale=scale, return_lse=True, layout=layout))
        o, lse = call(turn(q), turn(k), turn(v))
        problems = self.differences(turn(o), lse, q, k, v, allowed, scale)
        eager = self.attention(turn(q), turn(k), turn(v), mask, scale=scale, layout=layout)
        return problems if bool((eager == o).all()) else problems + ["o differs outside jit, without lse"]

    def correctness(self):
        jnp, np, splat, suite = self.jnp, self.np, self.splat, self.suite
        for dtype in (jnp.bfloat16, jnp.float16) if self.gpu else (jnp.bfloat16, jnp.float32):
            for dim in (64, 128):
                for pattern in suite.SMALL[:: 4 if self.options.quick else 2]:
                    q, k, v = self.qkv(dim=dim, dtype=dtype)
                    allowed = suite.rows_of(pattern, suite.shape_of(self.lib, pattern, 300), range(300))
                    layout = "bshd" if dim == 128 else "bhsd"
                    mask = splat.pattern(pattern.expression)
                    self.checks.check(f"{pattern.name} {dtype.__name__} D {dim}", self.compare, mask, allowed, q, k, v, layout)
        mask, causal = splat.causal(), np.tri(300, dtype=bool)
        q, k, v = self.qkv()
        for layout in ("bhsd", "bshd"):
            self.checks.check(f"4 heads on 2, {layout}", self.compare, mask, causal, *self.qkv(kv_heads=2), layout)
        self.checks.check("dims 72 and 40", self.compare, mask, causal, *self.qkv(dim=72, value_dim=40))
        self.checks.check("scale", self.compare, mask, causal, q, k, v, "bhsd", 0.31)
        rng = np.random.default_rng(0)
        for shape in ((300, 300), (4, 300, 300), (2, 4, 300, 300)):
            array = rng.random(shape) < 0.2
            allowed = array if array.ndim != 3 else array[None]
            self.checks.check(f"dense {shape}", self.compare, splat.from_dense(array), allowed, q, k, v)
        self.checks.check("vmap", self.vmapped)
        self.checks.check("shard_map", self.sharded)
        self.checks.check("repeated and interleaved", self.repeated)
        self.checks.check("one custom call", self.one_call)
        if self.gpu:
            x = q.astype(jnp.float32)
            self.checks.check("float32 refused", raises, splat.UnsupportedError, "float32", self.attention, x, x, x, "full")
            self.checks.check("float32 refused under jit", raises, Exception, "fp32",
                              lambda: self.jax.block_until_ready(self.jax.jit(lambda x: self.attention(x, x, x, "full"))(x)))

    def close(self, got, want):
        """Another batch or number of heads may have other tiles, whose sums round otherwise."""
        got, want = (self.jnp.asarray(x, self.jnp.float32) for x in (got, want))
        off = float(self.jnp.linalg.norm(got - want) / self.jnp.linalg.norm(want))
        return [] if off < 6e-3 else [f"differs by {off:.2g} of its norm"]

    def vmapped(self):
        jax, jnp = self.jax, self.jnp
        q, k, v = self.qkv()
        mask, stack = self.splat.causal(), jnp.stack([q, q * 0.5, -q])
        got = jax.jit(jax.vmap(lambda x: self.attention(x, k, v, mask)))(stack)
        want = jnp.stack([self.attention(x, k, v, mask) for x in stack])
        return self.close(got, want)

    def sharded(self):
        jax, np = self.jax, self.np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        count = 2 if len(jax.devices()) >= 2 else 1
        mesh = Mesh(np.array(jax.devices()[:count]).reshape(1, count), ("batch", "heads"))
        spec, mask = P("batch", "heads"), self.splat.causal()
        q, k, v = self.qkv()
        call = jax.jit(jax.shard_map(lambda q, k, v: self.attention(q, k, v, mask), mesh=mesh, in_specs=(spec,) * 3,
                                     out_specs=spec))
        want = self.attention(q, k, v, mask)
        got = call(*(jax.device_put(x, NamedSharding(mesh, spec)) for x in (q, k, v)))
        self.checks.numbers["shard_map_devices"] = count
        return self.close(np.asarray(got.astype("float32")), np.asarray(want.astype("float32")))

    def repeated(self):
        """Many steps of a function with two masks and work between: XLA may capture it into command buffers."""
        jax, jnp = self.jax, self.jnp
        a, b = self.splat.causal() & self.splat.window(30, 0), self.splat.pattern("strided(4)")

        def step(x, k, v):
            for _ in range(3):
                x = jnp.tanh(self.attention(x, k, v, a)) + self.attention(x * 2, k, v, b)
            return x

        call, problems = jax.jit(step), []
        for n in range(20):
            if n % 5 == 0:
                q, k, v = self.qkv()
            got, again = call(q, k, v), call(q, k, v)
            if not bool((got == again).all()) or bool(jnp.isnan(got).any()):
                problems.append(f"two runs of step {n} differ")
        want = q
        for _ in range(3):
            want = jnp.tanh(self.attention(want, k, v, a)) + self.attention(want * 2, k, v, b)
        error = float(jnp.abs(got.astype(jnp.float32) - want.astype(jnp.float32)).max())
        return problems[:3] if error < 0.05 else problems[:3] + [f"jit differs from eager by {error}"]

    def one_call(self):
        q, k, v = self.qkv()
        for layout in ("bhsd", "bshd"):
            call = self.jax.jit(lambda q, k, v: self.attention(q, k, v, "full", layout=layout)).lower(
                *((x.transpose(0, 2, 1, 3) if layout == "bshd" else x) for x in (q, k, v)))
            text = call.compile().as_text()
            entry = text[text.index("ENTRY"):]
            work = [w for w in ("transpose(", "copy(", "fusion(", "convert(") if w in entry]
            if work or entry.count("splat_attention\"") != 1:
                return [f"{layout}: the compiled program has more than the call: {work}"]
        return []

    # Host side and speed.

    def host(self):
        """Microseconds a jitted step: attention, and an addition of the same arrays, which any program pays."""
        jax = self.jax
        q, k, v = self.qkv(batch=1, heads=1, length=128)
        mask = self.splat.causal()
        steps = {"attention": jax.jit(lambda q, k, v: self.attention(q, k, v, mask)),
                 "addition": jax.jit(lambda q, k, v: q + k + v)}
        result = {}
        for name, step in steps.items():
            step(q, k, v).block_until_ready()
            outs = []
            result[name] = median_us(lambda: outs.append(step(q, k, v)), 200,
                                     before=lambda: (outs and outs[-1].block_until_ready(), outs.clear()))
        result["difference_us"] = result["attention"]["median_us"] - result["addition"]["median_us"]
        return result

    def wall_ms(self, calls):
        """Median milliseconds a call of each implementation, in alternation, by the wall clock over many calls."""
        counts, samples = {}, {name: [] for name in calls}
        for name, call in calls.items():
            call().block_until_ready()
            began = time.perf_counter()
            call().block_until_ready()
            counts[name] = max(5, min(200, int(0.02 / max(time.perf_counter() - began, 1e-5))))
        for _ in range(self.options.rounds):
            for name, call in calls.items():
                began, out = time.perf_counter(), None
                for _ in range(counts[name]):
                    out = call()
                out.block_until_ready()
                samples[name].append((time.perf_counter() - began) / counts[name] * 1e3)
        return {name: {"ms": statistics.median(s), "min_ms": min(s), "calls": counts[name]} for name, s in samples.items()}

    def peers(self, pattern, q, k, v):
        """jax.nn.dot_product_attention: cuDNN where it can say the mask, XLA with the mask as an array elsewhere."""
        jax = self.jax
        cudnn = {"causal": dict(is_causal=True), "causal_window1024": dict(is_causal=True, local_window_size=(1023, 0))}
        if pattern.name in cudnn:
            call = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **cudnn[pattern.name]))
            return {"cudnn": lambda: call(q, k, v)}
        allowed = self.jnp.asarray(self.splat.pattern(pattern.expression).at(q.shape[1]).to_dense())[None, None]
        call = jax.jit(lambda q, k, v, m: jax.nn.dot_product_attention(q, k, v, mask=m, implementation="xla"))
        return {"xla": lambda: call(q, k, v, allowed)}

    def speed(self):
        o, rows = self.options, self.checks.numbers.setdefault("speed", [])
        for dim in map(int, o.dims.split(",")):
            q, k, v = (x.transpose(0, 2, 1, 3) for x in self.qkv(o.batch, o.heads, o.seq, dim))
            for pattern in (p for p in self.suite.SUITE if p.name in TIMED):
                if self.checks.over_budget():
                    self.checks.skipped.append(f"timing of {pattern.name} at D {dim}: out of time")
                    continue
                mask = self.splat.pattern(pattern.expression)
                call = self.jax.jit(lambda q, k, v: self.splat.jax.dot_product_attention(q, k, v, mask))
                calls, row = {"splat": lambda: call(q, k, v)}, {"pattern": pattern.name, "dim": dim}
                try:
                    others = self.peers(pattern, q, k, v)
                    for name, other in others.items():
                        a, b = (x.astype(self.jnp.float32) for x in (call(q, k, v), other()))
                        row[f"{name}_agrees"] = float(self.jnp.linalg.norm(a - b) / self.jnp.linalg.norm(b))
                    calls |= others
                except Exception as error:
                    row["peer_error"] = f"{type(error).__name__}: {str(error)[:200]}"
                row["times"] = self.wall_ms(calls)
                rows.append(row)
                self.checks.save()
                print(f"  jax {line(row)}", flush=True)
        return rows

    def run(self):
        import record
        checks = self.checks
        checks.numbers["meta"] = record.metadata(self.lib, self.options.commit)
        self.correctness()
        checks.measure("host", self.host)
        if self.gpu and not self.options.quick:
            checks.measure("speed", self.speed)
        checks.save()


# ---- All of it ----


def run_part(name, options):
    """In a process of its own; what it leaves in its result file, or why it left none."""
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        command = [sys.executable, __file__, *sys.argv[1:], "--part", name, "--result", result]
        try:
            code = subprocess.run(command, timeout=options.part_timeout).returncode
        except subprocess.TimeoutExpired:
            code = f"more than {options.part_timeout} s"
        part = {"passed": 0, "failures": [], "skipped": []}
        if os.path.exists(result):
            with open(result, encoding="utf-8") as file:
                part = json.load(file)
        if code != 0:
            part["failures"].append(f"{name}: the process ended with {code}; what it had done is kept")
        return part


def line(row):
    """One case of the speed table: milliseconds of each, and the others' over splat's."""
    times = {n: t["ms"] for n, t in row["times"].items() if "ms" in t}
    cells = [f"{n} {ms:.3f} ms" for n, ms in times.items()]
    cells += [f"{n} {t['error'][:60]}" for n, t in row["times"].items() if "ms" not in t]
    cells += [f"{times[n] / times['splat']:.2f}x" for n in times if n != "splat" and "splat" in times]
    cells += [row[name] for name in ("flex_error", "peer_error") if name in row]
    return f"D {row['dim']:<4} {row['pattern']:<20} " + "  ".join(cells)


def table(name, part):
    lines = [f"{name}: {part['passed']} passed, {len(part['failures'])} failed"]
    lines += [f"  FAILED {failure}" for failure in part["failures"]]
    for what, value in part.get("host", {}).items():
        lines.append(f"  {what}: " + (f"{value['median_us']:.2f} us" if isinstance(value, dict) else f"{value:.2f} us"))
    for what, value in part.get("graph_launch", {}).items():
        lines.append(f"  in a graph, {what}: {value:.2f}")
    lines += [f"  {line(row)}" for row in part.get("speed", [])]
    lines += [f"  skipped: {what}" for what in part["skipped"]]
    return "\n".join(lines)


def main():
    options = arguments()
    if options.part:
        {"torch": Torch, "jax": Jax}[options.part](options).run()
        return 0
    parts = {name: run_part(name, options) for name in options.parts.split(",")}
    for name, part in parts.items():
        print(table(name, part))
    out = options.out or (os.path.join(os.environ["OUT"], "check_python.json") if os.environ.get("OUT") else None)
    if out:
        import record
        record.write(out, parts)
    passed, failed = (sum(x) for x in zip(*((p["passed"], len(p["failures"])) for p in parts.values())))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
