"""What the correctness groups share: the library, one context, guarded tensors, one call that runs attention.

Every tensor lies in a larger buffer filled with NaN: reads past the keys or past D show as NaN in the output, writes
past the output show in its guard. Outputs are poisoned with NaN before each run, the workspace with all-ones bytes.
"""
import ctypes
import traceback

import torch

import reference
import splat_ctypes
import suite

NAN = float("nan")
SPLAT_DTYPE = {torch.float16: splat_ctypes.FP16, torch.bfloat16: splat_ctypes.BF16, torch.float32: splat_ctypes.FP32}
SHORT = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


class DeviceLost(Exception):
    """The CUDA context is broken: nothing after this can be trusted."""


class Env:
    def __init__(self, lib_path, device, quick=False, seed=0, cache_dir=None):
        self.lib = splat_ctypes.Splat(lib_path)
        self.device, self.gpu, self.quick = torch.device(device), device != "cpu", quick
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.host = torch.Generator().manual_seed(seed)
        if self.gpu:
            torch.zeros(1, device=self.device)  # makes the primary context current
        self.context = self.lib.context(cache_dir=cache_dir)
        self.passed, self.failures, self.skipped = 0, [], []

    # ---- tensors ----

    def guarded(self, batch, heads, rows, dim, dtype, layout="bhsd", fill="random", pad=3):
        """[batch, heads, rows, dim] view into a NaN-filled buffer; returns (view, buffer)."""
        outer = (batch, heads, rows + pad, dim + 8) if layout == "bhsd" else (batch, rows + pad, heads, dim + 8)
        buffer = torch.full(outer, NAN, dtype=dtype, device=self.device)
        view = (buffer if layout == "bhsd" else buffer.transpose(1, 2))[:, :, :rows, :dim]
        if fill == "random":
            view.copy_(torch.randn(view.shape, generator=self.generator, device=self.device))
        return view, buffer

    def qkv(self, dtype, dim=64, batch=1, heads=2, q_len=256, kv_len=None, kv_heads=None, value_dim=None,
            layout="bhsd"):
        kv_len, kv_heads = kv_len or q_len, kv_heads or heads
        return (self.guarded(batch, heads, q_len, dim, dtype, layout)[0],
                self.guarded(batch, kv_heads, kv_len, dim, dtype, layout)[0],
                self.guarded(batch, kv_heads, kv_len, value_dim or dim, dtype, layout)[0])

    def random_mask(self, q_len, kv_len, density=0.5):
        return (torch.rand((q_len, kv_len), generator=self.host) < density).to(torch.uint8)

    # ---- running ----

    def stream(self):
        return torch.cuda.current_stream().cuda_stream if self.gpu else None

    def sync(self):
        if self.gpu:
            try:
                torch.cuda.synchronize()
            except Exception as error:
                raise DeviceLost(str(error).splitlines()[0]) from error

    def compile(self, mask, q, k, v, **options):
        return self.context.compile(
            mask, dtype=SPLAT_DTYPE[q.dtype], head_dim=q.shape[3], value_dim=v.shape[3], batch=q.shape[0],
            heads=q.shape[1], kv_heads=k.shape[1],
            device=splat_ctypes.DEVICE_GPU if self.gpu else splat_ctypes.DEVICE_CPU, **options)

    def workspace(self, kernel, q):
        size = kernel.workspace_bytes(q.shape[0], q.shape[1])
        return torch.full((size,), 255, dtype=torch.uint8, device=self.device) if size else None

    def attend(self, mask, q, k, v, scale=0.0, kernel=None, layout="bhsd", lse=True, **options):
        """(o, lse) of one run; raises AssertionError when a guard was written to."""
        kernel = kernel or self.compile(mask, q, k, v, **options)
        batch, heads, q_len, _ = q.shape
        o, o_buffer = self.guarded(batch, heads, q_len, v.shape[3], q.dtype, layout, fill=None)
        lse_buffer = torch.full((batch, heads, q_len + 3), NAN, dtype=torch.float32, device=self.device)
        lse_view = lse_buffer[:, :, :q_len] if lse else None
        workspace = self.workspace(kernel, q)
        kernel.run(self.lib.args(q, k, v, o, lse_view, scale, workspace), self.stream())
        self.sync()
        rows = o_buffer if layout == "bhsd" else o_buffer.transpose(1, 2)
        assert torch.isnan(rows[:, :, q_len:]).all() and torch.isnan(rows[..., v.shape[3]:]).all(), \
            "memory around o was written to"
        assert torch.isnan(lse_buffer[:, :, q_len:]).all(), "memory after lse was written to"
        assert lse or torch.isnan(lse_buffer).all(), "lse was written though not wanted"
        return o, lse_view

    # ---- checking ----

    def compare(self, mask, allowed, q, k, v, rows=None, scale=0.0, loosen=1.0, **options):
        """Runs and compares rows (all when None); allowed is bool [n, S] or [B, H, n, S]. Returns problems."""
        o, lse = self.attend(mask, q, k, v, scale=scale, **options)
        rows = torch.arange(q.shape[2], device=self.device) if rows is None else rows.to(self.device)
        ref_o, ref_lse = reference.attention(q, k, v, allowed.to(self.device).bool(), rows,
                                             scale or reference.default_scale(q))
        return reference.differences(o[:, :, rows], None if lse is None else lse[:, :, rows], ref_o, ref_lse, q.dtype,
                                     loosen)

    def compare_pattern(self, pattern, q, k, v, rows=None, align=splat_ctypes.BOTTOM_RIGHT, **options):
        q_len, kv_len = q.shape[2], k.shape[2]
        shape = suite.shape_of(self.lib, pattern, q_len, kv_len, align, self.device)
        indices = torch.arange(q_len) if rows is None else rows
        allowed = suite.rows_of(pattern, shape, indices, self.device)
        mask = self.lib.expression(pattern.expression, q_len, kv_len, align)
        return self.compare(mask, allowed, q, k, v, rows=rows, **options)

    def sampled(self, length, count=64):
        """First, last and `count` random rows."""
        some = torch.randint(0, length, (count,), generator=self.host)
        return torch.unique(torch.cat([torch.tensor([0, length - 1]), some]))

    def check(self, label, function, *arguments, **named):
        """Counts one check: passes when the function returns no problems. An exception is a failure."""
        try:
            problems = function(*arguments, **named) or []
        except DeviceLost:
            self.failures.append(f"{label}: the device was lost")
            raise
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
            if not isinstance(error, (splat_ctypes.SplatError, AssertionError)):
                problems.append(traceback.format_exc().replace("\n", " | "))
            self.failures.append(f"{label}: {'; '.join(problems)}")
            self.sync()
            return
        if problems:
            self.failures.append(f"{label}: {'; '.join(problems)}")
        else:
            self.passed += 1

    def skip(self, label):
        self.skipped.append(label)


def bits(t):
    """A contiguous integer copy, so that equality is bitwise."""
    return t.contiguous().view({2: torch.int16, 4: torch.int32}[t.element_size()])


def same_bits(pairs, what):
    """Problems when the two (o, lse) pairs are not bitwise equal."""
    (o1, lse1), (o2, lse2) = pairs
    problems = []
    for name, a, b in (("o", o1, o2), ("lse", lse1, lse2)):
        if not torch.equal(bits(a), bits(b)):
            problems.append(f"{name} differs in {int((bits(a) != bits(b)).sum())} elements {what}")
        if torch.isnan(a).any():
            problems.append(f"{name} has NaN")
    return problems


def pack_bits(mask):
    """uint8 [rows, ceil(cols / 8)], least significant bit first, of a 0/1 mask."""
    rows, cols = mask.shape
    wide = torch.zeros((rows, -(-cols // 8) * 8), dtype=torch.int32)
    wide[:, :cols] = mask
    weights = torch.tensor([1 << b for b in range(8)], dtype=torch.int32)
    return (wide.view(rows, -1, 8) * weights).sum(-1).to(torch.uint8)


assert ctypes.sizeof(ctypes.c_void_p) == 8, "the binding assumes 64-bit pointers"
