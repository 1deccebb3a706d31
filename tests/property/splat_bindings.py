"""libsplat.so through ctypes: only what the property tests call."""

import ctypes
import os
import pathlib

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LIBRARY = pathlib.Path(os.environ.get("SPLAT_LIB", ROOT / "build" / "libsplat.so")).resolve()

i64, i32, ptr, size_t = ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t
BOTTOM_RIGHT, TOP_LEFT = 0, 1
UNION, INTERSECTION, DIFFERENCE = 0, 1, 2
FP16, BF16, FP32 = 0, 1, 2
CPU = 1


class Run(ctypes.Structure):
    _fields_ = [("start", i32), ("stride", i32), ("count", i32), ("width", i32)]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", size_t),
        ("dtype", ctypes.c_int),
        ("device", ctypes.c_int),
        ("arch", ctypes.c_int),
        ("head_dim", i64),
        ("value_dim", i64),
        ("batch", i64),
        ("heads", i64),
        ("kv_heads", i64),
        ("tile_rows", i64),
        ("tile_cols", i64),
        ("layout", i64),
        ("op", ctypes.c_int),
    ]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ptr), ("batch_stride", i64), ("head_stride", i64), ("row_stride", i64)]


class Args(ctypes.Structure):
    _fields_ = [
        ("struct_size", size_t),
        ("batch", i64),
        ("heads", i64),
        ("kv_heads", i64),
        ("q_len", i64),
        ("kv_len", i64),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("o", Tensor),
        ("lse", ptr),
        ("lse_batch_stride", i64),
        ("lse_head_stride", i64),
        ("scale", ctypes.c_float),
        ("workspace", ptr),
        ("workspace_bytes", size_t),
    ]


class Values(ctypes.Structure):
    _fields_ = [("data", ptr), ("batch_stride", i64), ("head_stride", i64)]


class SparseArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", size_t),
        ("batch", i64),
        ("heads", i64),
        ("kv_heads", i64),
        ("q_len", i64),
        ("kv_len", i64),
        ("values", Values),
        ("scores", Values),
        ("q", Tensor),
        ("k", Tensor),
        ("x", Tensor),
        ("y", Tensor),
        ("lse", ptr),
        ("lse_batch_stride", i64),
        ("lse_head_stride", i64),
        ("scale", ctypes.c_float),
    ]


class ContextOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", size_t),
        ("log", ptr),
        ("log_user", ptr),
        ("cache_dir", ctypes.c_char_p),
        ("cache_mode", ctypes.c_int),
        ("cache_max_bytes", i64),
        ("threads", ctypes.c_int),
    ]


class SplatError(Exception):
    pass


lib = ctypes.CDLL(str(LIBRARY))
lib.splat_last_error.restype = ctypes.c_char_p
for _name in ("splat_acsr_pairs", "splat_acsr_families", "splat_acsr_bytes", "splat_acsr_q_len", "splat_acsr_kv_len"):
    getattr(lib, _name).restype = i64
    getattr(lib, _name).argtypes = [ptr]
lib.splat_acsr_equal.argtypes = [ptr, ptr]
for _name in ("splat_mask_destroy", "splat_acsr_destroy", "splat_kernel_destroy", "splat_context_destroy"):
    getattr(lib, _name).argtypes = [ptr]
    getattr(lib, _name).restype = None


def check(status):
    if status:
        raise SplatError(lib.splat_last_error().decode())


class Handle:
    """An owned pointer; `with` or garbage collection destroys it."""

    def __init__(self, kind, make, *arguments):
        self.destroy = getattr(lib, f"splat_{kind}_destroy")
        self.pointer = ptr()
        check(make(*arguments, ctypes.byref(self.pointer)))

    def __del__(self):
        if self.pointer:
            self.destroy(self.pointer)
            self.pointer = None


def mask_from_expression(text, q_len, kv_len, align=BOTTOM_RIGHT):
    return Handle("mask", lib.splat_mask_from_expression, text.encode(), i64(q_len), i64(kv_len), align)


def mask_from_array(array):
    """A boolean array with any row stride, as bytes."""
    assert array.dtype == np.bool_ and (array.strides[1] == 1 or array.shape[1] == 1)
    q_len, kv_len = array.shape
    stride = array.strides[0] if q_len > 1 else max(array.strides[0], kv_len)
    return Handle("mask", lib.splat_mask_from_bytes, ptr(array.ctypes.data), i64(q_len), i64(kv_len), i64(stride))


def mask_from_bits(array):
    packed = np.ascontiguousarray(np.packbits(array, axis=1, bitorder="little"))
    q_len, kv_len = array.shape
    return Handle(
        "mask", lib.splat_mask_from_bits, ptr(packed.ctypes.data), i64(q_len), i64(kv_len), i64(packed.shape[1])
    )


def mask_from_csr(array):
    indptr = np.concatenate([[0], np.cumsum(array.sum(axis=1))]).astype(np.int64)
    indices = np.ascontiguousarray(np.nonzero(array)[1].astype(np.int64))
    q_len, kv_len = array.shape
    return Handle(
        "mask", lib.splat_mask_from_csr, ptr(indptr.ctypes.data), ptr(indices.ctypes.data), i64(q_len), i64(kv_len)
    )


def acsr(mask):
    return Handle("acsr", lib.splat_acsr_create, mask.pointer)


def combine(a, op, b):
    return Handle("acsr", lib.splat_acsr_combine, a.pointer, op, b.pointer)


def complement(a):
    return Handle("acsr", lib.splat_acsr_complement, a.pointer)


def equal(a, b):
    return bool(lib.splat_acsr_equal(a.pointer, b.pointer))


def expand(a):
    q_len, kv_len = lib.splat_acsr_q_len(a.pointer), lib.splat_acsr_kv_len(a.pointer)
    out = np.full((q_len, kv_len), 7, dtype=np.uint8)
    for i in range(q_len):
        check(lib.splat_acsr_expand_row(a.pointer, i64(i), ptr(out[i].ctypes.data)))
    assert out.max(initial=0) <= 1
    return out.astype(bool)


def rows(a):
    """Every row as a list of (start, stride, count, width)."""
    q_len, kv_len = lib.splat_acsr_q_len(a.pointer), lib.splat_acsr_kv_len(a.pointer)
    buffer, count, result = (Run * (kv_len + 1))(), i64(), []
    for i in range(q_len):
        check(lib.splat_acsr_row(a.pointer, i64(i), buffer, i64(kv_len + 1), ctypes.byref(count)))
        result.append([(r.start, r.stride, r.count, r.width) for r in buffer[: count.value]])
    return result


def options(**fields):
    result = Options()
    lib.splat_options_init(ctypes.byref(result))
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def context(threads=2):
    settings = ContextOptions()
    lib.splat_context_options_init(ctypes.byref(settings))
    settings.cache_mode = 3  # off
    settings.threads = threads
    return Handle("context", lib.splat_context_create, ctypes.byref(settings))


def tensor(array):
    """[batch, heads, rows, D] in any order of the first three axes."""
    strides = [s // array.itemsize for s in array.strides]
    assert strides[3] == 1 or array.shape[3] == 1
    return Tensor(array.ctypes.data, strides[0], strides[1], strides[2])


def attention(ctx, mask, q, k, v, dtype, scale=0.0):
    """Runs on the CPU device; returns o in v's element type, laid out as q, and lse."""
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, value_dim = k.shape[1], k.shape[2], v.shape[3]
    settings = options(
        dtype=dtype, device=CPU, head_dim=head_dim, value_dim=value_dim, batch=batch, heads=heads, kv_heads=kv_heads
    )
    kernel = Handle("kernel", lib.splat_compile, ctx.pointer, mask.pointer, ctypes.byref(settings))
    o = np.full((batch, q_len, heads, value_dim), 0x7FFF if q.itemsize == 2 else np.nan, dtype=q.dtype)
    o = o.transpose(0, 2, 1, 3)
    lse = np.full((batch, heads, q_len), np.nan, dtype=np.float32)
    args = Args()
    lib.splat_attention_args_init(ctypes.byref(args))
    args.batch, args.heads, args.kv_heads, args.q_len, args.kv_len = batch, heads, kv_heads, q_len, kv_len
    args.q, args.k, args.v, args.o = tensor(q), tensor(k), tensor(v), tensor(o)
    args.lse, args.lse_batch_stride, args.lse_head_stride = lse.ctypes.data, heads * q_len, q_len
    args.scale = scale
    needed = size_t()
    check(lib.splat_workspace_bytes(kernel.pointer, i64(batch), i64(heads), ctypes.byref(needed)))
    workspace = np.empty(needed.value + 256, dtype=np.uint8)
    if needed.value:
        args.workspace, args.workspace_bytes = (workspace.ctypes.data + 255) // 256 * 256, needed.value
    check(lib.splat_run(kernel.pointer, ctypes.byref(args), None))
    return o, lse


OPS = {"sddmm": 1, "softmax": 2, "spmm": 3, "spmm_transposed": 4}


def operator(ctx, name, mask, values_shape, lengths, dtype, kv_heads=0, scale=0.0, **arrays):
    """Runs an operator on values on the CPU device: arrays are scores, values, q, k, x, y, lse; results are written into them."""
    dims = [arrays[n].shape[3] for n in ("q", "x") if n in arrays]
    settings = options(dtype=dtype, device=CPU, op=OPS[name], head_dim=dims[0] if dims else 0, batch=values_shape[0],
                       heads=values_shape[1], kv_heads=kv_heads)
    kernel = Handle("kernel", lib.splat_compile, ctx.pointer, mask.pointer, ctypes.byref(settings))
    args = SparseArgs()
    lib.splat_sparse_args_init(ctypes.byref(args))
    args.batch, args.heads, args.kv_heads, (args.q_len, args.kv_len), args.scale = *values_shape[:2], kv_heads, lengths, scale
    for field, array in arrays.items():
        if field == "lse":
            args.lse, args.lse_batch_stride, args.lse_head_stride = array.ctypes.data, array.shape[1] * array.shape[2], array.shape[2]
        elif field in ("values", "scores"):
            strides = [n // array.itemsize for n in array.strides]
            setattr(args, field, Values(array.ctypes.data, strides[0], strides[1]))
        else:
            setattr(args, field, tensor(array))
    check(lib.splat_run_sparse(kernel.pointer, ctypes.byref(args), None))
