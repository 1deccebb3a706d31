"""splat itself, through bench/splat_ctypes.py."""
import functools

import splat_ctypes
from compare import problems
from compare.registry import NotSupported, implementation

DTYPE = {"fp16": splat_ctypes.FP16, "bf16": splat_ctypes.BF16, "fp32": splat_ctypes.FP32}


def unsupported(make):
    """A status of "unsupported" is no failure; a library that cannot be loaded is said to be so."""
    @functools.wraps(make)
    def wrapped(p, data):
        try:
            return make(p, data)
        except splat_ctypes.SplatError as error:
            if error.status == splat_ctypes.UNSUPPORTED:
                raise NotSupported(str(error)) from error
            raise
        except OSError as error:
            raise NotSupported(f"the library is not built: {error}") from error
    return wrapped


def dtype_of(p):
    if p.dtype not in DTYPE:
        raise NotSupported(f"{p.kind} has no dtype {p.dtype}")
    return DTYPE[p.dtype]


def stream(data):
    import torch
    return torch.cuda.current_stream().cuda_stream if data.engine.cuda else None


def device(data):
    return splat_ctypes.DEVICE_GPU if data.engine.cuda else splat_ctypes.DEVICE_CPU


def workspace(data, size):
    import torch
    return torch.empty(size, dtype=torch.uint8, device=data.engine.device) if size else None


@implementation("attention", "splat", no_copies=True)
@unsupported
def attention(p, data):
    """splat_run of a compiled mask"""
    import torch
    lib, context = data.engine.lib(), data.engine.context()
    kernel = context.compile(lib.expression(data.pattern.expression, p.seq), dtype=dtype_of(p), head_dim=p.dim,
                             batch=p.batch, heads=p.heads, device=device(data))
    space = workspace(data, kernel.workspace_bytes(p.batch, p.heads))
    lse = torch.empty(data.sets, p.batch, p.heads, p.seq, device=data.engine.device)
    calls = [lib.args(data.q[n], data.k[n], data.v[n], data.o[n], lse[n], data.scale, space) for n in range(data.sets)]

    def call(n):
        kernel.run(calls[n], stream(data))
        return data.o[n]
    return call


@implementation("sddmm softmax spmm spmm_transposed", "splat", no_copies=True)
@unsupported
def masked(p, data):
    """splat_run_sparse of a compiled mask"""
    lib, context = data.engine.lib(), data.engine.context()
    if not lib.has_operators:
        raise NotSupported(f"not built: {lib.path} has no operators")
    op, names = {"sddmm": (splat_ctypes.OP_SDDMM, {"values": "out_values", "q": "q", "k": "k"}),
                 "softmax": (splat_ctypes.OP_SOFTMAX, {"values": "out_values", "scores": "values"}),
                 "spmm": (splat_ctypes.OP_SPMM, {"values": "values", "x": "v", "y": "o"}),
                 "spmm_transposed": (splat_ctypes.OP_SPMM_TRANSPOSED, {"values": "values", "x": "v", "y": "o"})}[p.kind]
    dim = p.dim if p.kind != "softmax" else 0
    kernel = context.compile(lib.expression(data.pattern.expression, p.seq), dtype=dtype_of(p), head_dim=dim, batch=p.batch,
                             heads=p.heads, device=device(data), op=op)
    calls = [lib.sparse_args(p.seq, p.seq, scale=data.scale or 0.0, **{field: getattr(data, name)[n] for field, name in names.items()})
             for n in range(data.sets)]
    result = data.out_values if p.kind in ("sddmm", "softmax") else data.o

    def call(n):
        kernel.run_sparse(calls[n], stream(data))
        return result[n]
    return call


@implementation("kron", "splat", no_copies=True)
@unsupported
def layer(p, data):
    """splat_layer_forward or splat_layer_backward of kron(a, b, c, d)"""
    lib, context = data.engine.lib(), data.engine.context()
    if not lib.has_layers:
        raise NotSupported(f"not built: {lib.path} has no layers")
    a, b, c, d = problems.blocks(p.setting)
    made = lib.layer(context, [lib.expression(f"kron({a}, {b}, {c}, {d})", a * b * d, a * c * d)],
                     dtype=DTYPE["fp32" if p.dtype == "tf32" else p.dtype], tf32=int(p.dtype == "tf32"), n=p.n,
                     layout=splat_ctypes.BATCH_FIRST if data.first else splat_ctypes.BATCH_LAST,
                     gradients=int(p.op != "forward"), device=device(data))
    space = workspace(data, made.workspace_bytes(p.n, p.op != "forward"))
    # Weights lie as [a][b][d][c], the canonical order of their values.
    if p.op == "grad_weight":
        weights = data.engine.randn(a, b, d, c, dtype=data.dtype)
        values = [t.view(a, b, d, c) for t in data.dw]
        calls = [lib.layer_args(p.n, [weights], [values[n]], space, x=data.x[n], dy=data.y[n]) for n in range(data.sets)]
        results = [t.permute(0, 2, 1, 3) for t in values]
    elif p.op == "grad_input":
        weights = [w.permute(0, 3, 1, 2).contiguous() for w in data.w]
        calls = [lib.layer_args(p.n, [weights[n]], None, space, dy=data.x[n], dx=data.y[n]) for n in range(data.sets)]
        results = data.y
    else:
        weights = [w.permute(0, 2, 1, 3).contiguous() for w in data.w]
        calls = [lib.layer_args(p.n, [weights[n]], None, space, x=data.x[n], y=data.y[n]) for n in range(data.sets)]
        results = data.y
    launch = made.forward if p.op == "forward" else made.backward

    def call(n):
        launch(calls[n], stream(data))
        return results[n]
    return call
