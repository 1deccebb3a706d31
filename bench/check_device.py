"""The correctness groups that need a GPU: repeats, streams, threads, graphs, offsets beyond 2^31, long and many."""
import threading

import torch

import reference
import splat_ctypes
import suite
from check_cases import BF16, FP16, small
from check_env import NAN, same_bits

GIB = 1 << 30


class Launch:
    """One kernel with its own tensors, ready to be enqueued many times."""

    def __init__(self, env, expression, dtype=BF16, dim=64, batch=2, heads=4, q_len=2048, mask=None, kv_len=None, kv_heads=None):
        self.env = env
        self.mask = mask or env.lib.expression(expression, q_len, kv_len or q_len)
        self.q, self.k, self.v = env.qkv(dtype, dim, batch=batch, heads=heads, q_len=q_len, kv_len=kv_len, kv_heads=kv_heads)
        self.kernel = env.compile(self.mask, self.q, self.k, self.v)
        self.workspace = env.workspace(self.kernel, self.q)
        self.outputs = []

    def output(self):
        o = torch.full(self.q.shape[:3] + (self.v.shape[3],), NAN, dtype=self.q.dtype, device=self.env.device)
        lse = torch.full(self.q.shape[:3], NAN, dtype=torch.float32, device=self.env.device)
        return o, lse

    def run(self, o, lse, stream=None):
        args = self.env.lib.args(self.q, self.k, self.v, o, lse, workspace=self.workspace)
        self.kernel.run(args, stream if stream is not None else self.env.stream())

    def reference_problems(self, o, lse, expression):
        """Against the reference on sampled rows, from what the tensors hold now."""
        q_len = self.q.shape[2]
        rows = self.env.sampled(q_len)
        allowed = torch.tensor([list(r) for r in self.mask.rows(rows.tolist())], dtype=torch.bool,
                               device=self.env.device)
        rows = rows.to(self.env.device)
        ref_o, ref_lse = reference.attention(self.q, self.k, self.v, allowed, rows, reference.default_scale(self.q))
        problems = reference.differences(o[:, :, rows], lse[:, :, rows], ref_o, ref_lse, self.q.dtype)
        return [f"{expression}: {p}" for p in problems]


EXPRESSIONS = ("causal", "window(100) | rows(0, 64) | cols(0, 64)", "strided(4)", "logsparse & causal")


def repeat_100(env):
    """Bitwise the same output over 100 runs."""
    cases = [(e, None) for e in EXPRESSIONS] + [("random bytes", env.lib.from_bytes(env.random_mask(2048, 2048, 0.1)))]
    for expression, mask in cases:
        for dtype, dim in ((FP16, 128), (BF16, 64)):
            launch = Launch(env, expression, dtype, dim, mask=mask)
            env.check(f"{expression} {dtype} D {dim}", repeat, env, launch, 100)


def repeat_parts(env):
    """Likewise kernels whose row tiles are shared by heads of a group, or come in parts, or both."""
    shapes = (("full", 1, 8192, 16, 2, True), ("causal", 4, 4096, 32, 8, True), ("causal", 4, 300, 64, 8, False),
              ("full", 1, 8192, 2, 2, True), ("window(30) | rows(0, 40) | cols(0, 9)", 2000, 2000, 2, 2, True))
    for expression, q_len, kv_len, heads, kv_heads, split in shapes:
        for dtype, dim in ((FP16, 64), (BF16, 128)):
            batch = 1 if split else 32
            launch = Launch(env, expression, dtype, dim, batch=batch, heads=heads, q_len=q_len, kv_len=kv_len, kv_heads=kv_heads)
            label = f"{expression} {q_len} x {kv_len}, {heads} heads on {kv_heads}, {dtype} D {dim}"
            env.check(f"{label}: parts", lambda: [] if (launch.workspace is not None) == split else [f"split: {not split}"])
            env.check(label, repeat, env, launch, 100)


def repeat(env, launch, count):
    first = launch.output()
    launch.run(*first)
    env.sync()
    for n in range(count - 1):
        again = launch.output()
        launch.run(*again)
        problems = same_bits((first, again), f"in run {n + 2}")
        if problems:
            return problems
    return launch.reference_problems(*first, "after the runs")


def two_streams(env):
    """Two streams run two kernels at once, many times each: bitwise what each gives alone."""
    env.check("two kernels", on_streams, env, [Launch(env, e) for e in EXPRESSIONS[:2]], 50)
    one = Launch(env, "causal", q_len=1024)
    two = Launch(env, "causal", q_len=1024)
    two.kernel = one.kernel
    env.check("one kernel on both", on_streams, env, [one, two], 50)


def alone(env, launches):
    results = []
    for launch in launches:
        results.append(launch.output())
        launch.run(*results[-1])
    env.sync()
    return results


def on_streams(env, launches, count):
    expected = alone(env, launches)
    outputs = [[launch.output() for _ in range(count)] for launch in launches]
    streams = [torch.cuda.Stream() for _ in launches]
    env.sync()  # the poison is in place before the other streams write
    for n in range(count):
        for launch, stream, out in zip(launches, streams, outputs):
            launch.run(*out[n], stream.cuda_stream)
    env.sync()
    return [p for want, out in zip(expected, outputs) for o in out for p in same_bits((want, o), "between streams")][:3]


def two_threads(env):
    """Two threads compile and run at once, each on its own stream."""
    env.check("two threads", on_threads, env)


def on_threads(env):
    launches = [Launch(env, e, q_len=1024) for e in EXPRESSIONS[:2]]
    expected, problems = alone(env, launches), []

    def work(launch, want, expression):
        try:
            torch.cuda.set_device(torch.cuda.current_device())
            stream = torch.cuda.Stream()
            for n in range(20):
                out = launch.output()
                torch.cuda.current_stream().synchronize()
                again = env.compile(env.lib.expression(expression, 1024), launch.q, launch.k, launch.v)
                args = env.lib.args(launch.q, launch.k, launch.v, *out, workspace=launch.workspace)
                again.run(args, stream.cuda_stream)
                stream.synchronize()
                problems.extend(same_bits((want, out), f"in turn {n} of {expression}"))
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=a) for a in zip(launches, expected, EXPRESSIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems[:3]


def graph_replay(env):
    """Captured once, replayed on new inputs: right, and bitwise what a plain run gives."""
    for dtype, dim in ((FP16, 64), (BF16, 128)):
        env.check(f"{dtype} D {dim}", capture_and_replay, env, dtype, dim)


def capture_and_replay(env, dtype, dim):
    launches = [Launch(env, e, dtype, dim, q_len=1000) for e in EXPRESSIONS[:3]]
    outputs = alone(env, launches)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch, out in zip(launches, outputs):
            launch.run(*out, torch.cuda.current_stream().cuda_stream)
    problems = []
    for turn in range(3):
        for launch, (o, lse) in zip(launches, outputs):
            for t in (launch.q, launch.k, launch.v):
                t.copy_(torch.randn(t.shape, generator=env.generator, device=env.device))
            o.fill_(NAN), lse.fill_(NAN)
        graph.replay()
        env.sync()
        plain = alone(env, launches)
        for launch, out, again, expression in zip(launches, outputs, plain, EXPRESSIONS):
            problems += same_bits((out, again), f"between graph and plain run {turn}")
            problems += launch.reference_problems(*out, expression)
    return problems[:3]


# ---- Offsets ----

def offsets(env):
    """Strides that put rows, heads or batch entries at and beyond 2^31 and 2^32 elements. q, k, v and o are interleaved
    in one buffer, so that one run tests all four."""
    dim = 64
    for power in (31, 32):
        for delta in (-8, 0, 8):
            far = (1 << power) + delta
            env.check(f"head stride 2^{power} {delta:+d}", far_apart, env, dim, far, axis=1)
            env.check(f"batch stride 2^{power} {delta:+d}", far_apart, env, dim, far, axis=0)
        env.check(f"row 64 at 2^{power}", far_apart, env, dim, (1 << power) // 64, axis=2)
    env.check("lse head stride beyond 2^31", far_lse, env, dim)


def enough(env, needed):
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] > needed + 2 * GIB


def far_apart(env, dim, stride, axis):
    sizes = [2 if axis == 0 else 1, 2 if axis == 1 else 1, 130]
    strides = [130 * 4 * dim * 2, 130 * 4 * dim, 4 * dim]
    strides[axis] = stride
    elements = sum((n - 1) * s for n, s in zip(sizes, strides)) + 4 * dim
    if not enough(env, elements * 2):
        env.skip(f"stride {stride}: {elements * 2 >> 30} GiB are not free")
        return []
    buffer = torch.full((elements,), NAN, dtype=BF16, device=env.device)
    q, k, v, o = (buffer[n * dim:].as_strided(sizes + [dim], strides + [1], n * dim) for n in range(4))
    for t in (q, k, v):
        t.copy_(torch.randn(t.shape, generator=env.generator, device=env.device))
    lse = torch.full(sizes, NAN, dtype=torch.float32, device=env.device)
    mask = env.lib.expression("causal", sizes[2])
    kernel = env.compile(mask, q, k, v)
    kernel.run(env.lib.args(q, k, v, o, lse, workspace=env.workspace(kernel, q)), env.stream())
    env.sync()
    allowed = torch.ones((sizes[2], sizes[2]), dtype=torch.bool, device=env.device).tril()
    want = reference.attention(q.contiguous(), k.contiguous(), v.contiguous(), allowed,
                               torch.arange(sizes[2], device=env.device), reference.default_scale(q))
    return reference.differences(o.contiguous(), lse, *want, BF16)


def far_lse(env, dim):
    stride, n = (1 << 31) + 8, 130
    if not enough(env, stride * 4):
        env.skip("lse: 8 GiB are not free")
        return []
    buffer = torch.full((stride + n,), NAN, dtype=torch.float32, device=env.device)
    lse = buffer.as_strided((1, 2, n), (2 * stride, stride, 1))
    q, k, v = env.qkv(BF16, dim, q_len=n)
    o = torch.full(q.shape, NAN, dtype=BF16, device=env.device)
    kernel = env.compile(env.lib.expression("causal", n), q, k, v)
    kernel.run(env.lib.args(q, k, v, o, lse, workspace=env.workspace(kernel, q)), env.stream())
    env.sync()
    allowed = torch.ones((n, n), dtype=torch.bool, device=env.device).tril()
    want = reference.attention(q, k, v, allowed, torch.arange(n, device=env.device), reference.default_scale(q))
    return reference.differences(o, lse, *want, BF16)


# ---- Long and many ----

def long_sequences(env):
    """S = 1,048,576 on sampled rows, and 70,000 (batch, head) pairs."""
    length = 1 << 20
    q, k, v = env.qkv(BF16, 64, heads=1, q_len=length)
    for start in ("window37", "longformer", "strided50", "blocked"):
        rows = torch.unique(torch.cat([env.sampled(length, 8), torch.tensor([1, 127, 128, length - 2])]))
        if start in ("strided50",):  # dense tiles at this length would take seconds: a narrower form of it
            pattern = suite.Pattern("dilated", "dilated(40, 50)", suite.dilated(40, 50))
        else:
            pattern = small(start)
        env.check(f"{pattern.expression} at {length}", env.compare_pattern, pattern, q, k, v, rows=rows)
    del q, k, v
    for batch, heads in ((70000, 1), (1, 70000)):
        q, k, v = env.qkv(BF16, 64, batch=batch, heads=heads, q_len=16)
        env.check(f"batch {batch}, heads {heads}", env.compare_pattern, small("causal"), q, k, v)


def refusals(env):
    """What the launch must refuse: nothing may be computed instead."""
    q, k, v = env.qkv(BF16, 64, q_len=128)
    kernel = env.compile(env.lib.expression("causal", 128), q, k, v)
    o = torch.full(q.shape, NAN, dtype=BF16, device=env.device)
    changes = {"q_len": 127, "kv_len": 129, "batch": -1, "heads": 0, "kv_heads": 3, "scale": float("nan")}
    for name, value in changes.items():
        env.check(f"{name} = {value}", refused, env, kernel, (q, k, v, o), lambda a: setattr(a, name, value))
    env.check("misaligned q", refused, env, kernel, (q, k, v, o), lambda a: setattr(a.q, "data", a.q.data + 2))
    env.check("null k", refused, env, kernel, (q, k, v, o), lambda a: setattr(a.k, "data", None))
    env.check("row stride 65", refused, env, kernel, (q, k, v, o), lambda a: setattr(a.v, "row_stride", 65))


def refused(env, kernel, tensors, change):
    args = env.lib.args(*tensors, workspace=env.workspace(kernel, tensors[0]))
    change(args)
    try:
        kernel.run(args, env.stream())
    except splat_ctypes.SplatError as error:
        env.sync()
        written = not bool(torch.isnan(tensors[3]).all())
        short = [] if len(str(error)) > 30 else [f"the sentence is only: {error}"]
        return short + (["o was written all the same"] if written else [])
    return ["it was accepted"]


GROUPS = [(f.__name__, f, True) for f in (repeat_100, repeat_parts, two_streams, two_threads, graph_replay, offsets, long_sequences,
                                          refusals)]
