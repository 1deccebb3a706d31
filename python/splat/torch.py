"""Attention on PyTorch tensors: on the GPU through compiled kernels, on the CPU through the CPU engine.

    import splat, splat.torch
    mask = splat.causal() & splat.window(1023, 0)
    o = splat.torch.attention(q, k, v, mask)          # [B, H, S, D], as scaled_dot_product_attention takes them

A warm eager call looks its launch up by shapes, strides, dtypes and devices, makes the output, and launches on the current
stream. Under torch.compile, and wherever tensors are not plain ones, the call is the operator ``torch.ops.splat.attention``.
"""

from __future__ import annotations

import ctypes as C
from typing import Any, Callable

import numpy as np
import torch

from . import _cuda, _kernels
from ._library import BF16, FP16, FP32, INVALID, AttentionArgs, UnsupportedError, check, exception, lib
from .torch_layer import KronLinear, kron_linear
from ._pattern import Mask, PatternMap, Pattern, _bound_lengths, _dense, as_mask, by_key, pin, remember, text_key

__all__ = ["KronLinear", "attention", "from_mask_mod", "kron_linear"]

_DTYPES = {torch.float16: FP16, torch.bfloat16: BF16, torch.float32: FP32}
_NAMES = ("query", "key", "value")
_KEPT_LAUNCHES = 256  # that a mask keeps
_ARGS_BYTES = C.sizeof(AttentionArgs)

_run = lib.splat_run
_Tensor = torch.Tensor
_copy_args = AttentionArgs.from_buffer_copy
_byref = C.byref
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_empty_like, _empty = torch.empty_like, torch.empty
_dispatch_modes = torch._C._len_torch_dispatch_stack  # fake tensors, tracing
_functorch_level = torch._C._functorch.peek_interpreter_stack  # vmap and the like


def _no_device() -> int:
    return -1


# Present in builds with CUDA alone.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", _no_device)
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
_is_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)


class _Launch:
    """All of a call that its shapes, strides, dtypes and device decide."""

    __slots__ = ("kernel", "args", "device", "dtype", "copies", "like", "shape", "torch_device", "lse_shape", "generation")

    kernel: _kernels.Kernel
    args: AttentionArgs  # without pointers
    device: int  # ordinal, -1 for the CPU
    copies: tuple[bool, bool, bool] | None  # which of q, k, v must be made contiguous
    like: bool  # whether o is laid out as q
    shape: tuple[int, ...]  # of o
    dtype: torch.dtype
    torch_device: torch.device
    lse_shape: tuple[int, int, int] | None  # None when lse is not wanted
    generation: int  # of _kernels: a forked child makes its own


def _copy_needed(x: torch.Tensor, gpu: bool) -> bool:
    """Whether the kernel cannot read these strides. Strides of axes of length 1 are never used."""
    shape, strides = x.shape, x.stride()
    if shape[3] > 1 and strides[3] != 1:
        return True
    return gpu and any(n > 1 and s % 8 for n, s in zip(shape[:3], strides[:3]))


def _strides(x: torch.Tensor, copied: bool) -> tuple[int, int, int]:
    if copied:
        _, heads, rows, dim = x.shape
        return heads * rows * dim, rows * dim, dim
    return x.stride()[:3]  # type: ignore[return-value]


def _check_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, grouped: bool) -> None:
    for name, x in zip(_NAMES, (q, k, v)):
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{name} is {type(x).__module__}.{type(x).__name__}; it must be a torch.Tensor")
    if not q.device == k.device == v.device:
        raise ValueError(
            f"device is {q.device} for query, {k.device} for key and {v.device} for value; it must be the same for all"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(
            f"dtype is {q.dtype} for query, {k.dtype} for key and {v.dtype} for value; it must be the same for all"
        )
    if q.dtype not in _DTYPES:
        raise UnsupportedError(f"query has dtype {q.dtype}; attention takes float16 and bfloat16, and float32 on the CPU")
    if any(x.layout != torch.strided or x.is_neg() for x in (q, k, v)):
        raise UnsupportedError("query, key or value is no plain strided tensor; .contiguous() or .to_dense() makes one")
    _kernels.check_shapes(tuple(q.shape), tuple(k.shape), tuple(v.shape), _NAMES, grouped)


def _like_query(q: torch.Tensor, value_dim: int) -> bool:
    """Whether o can be laid out as q is: then a transposed view of [B, S, H, D] gives one again, without a copy."""
    order = sorted(range(4), key=lambda axis: (q.stride(axis), -axis))
    return q.shape[3] == value_dim and order[0] == 3 and q.stride(3) == 1 and 0 not in q.stride()


def _new_output(q: torch.Tensor, value_dim: int) -> torch.Tensor:
    if _like_query(q, value_dim):
        return torch.empty_like(q)
    return q.new_empty((q.shape[0], q.shape[1], q.shape[2], value_dim))


def _prepare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, scale: float | None, want_lse: bool,
             grouped: bool) -> _Launch:  # fmt: skip
    """Checks everything, compiles when there is no kernel yet, and lays the launch out."""
    _check_tensors(q, k, v, grouped)
    if q.device.type not in ("cpu", "cuda") or getattr(torch.version, "hip", None) and q.is_cuda:
        raise UnsupportedError(f"query is on {q.device}; attention runs on cpu and on cuda of NVIDIA")
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len, value_dim = k.shape[1], k.shape[2], v.shape[3]
    bound = mask.at(q_len, kv_len)
    launch = _Launch()
    launch.device = q.device.index if q.is_cuda else -1
    gpu = launch.device >= 0
    if gpu and _is_capturing():
        raise RuntimeError(
            "splat: the first call with these shapes and this mask compiles a kernel, which a stream capture does not allow; "
            "call once before the capture"
        )
    launch.kernel = _kernels.get(bound, _DTYPES[q.dtype], dim, value_dim, batch, heads, kv_heads, launch.device)
    launch.generation = launch.kernel.generation
    copies = tuple(_copy_needed(x, gpu) for x in (q, k, v))
    launch.copies = copies if any(copies) else None  # type: ignore[assignment]
    args = _kernels.make_args(batch, heads, kv_heads, q_len, kv_len, _kernels.check_scale(scale))
    for name, x, copied in zip("qkv", (q, k, v), copies):
        operand = getattr(args, name)
        operand.batch_stride, operand.head_stride, operand.row_stride = _strides(x, copied)
    o = _new_output(q, value_dim)
    args.o.batch_stride, args.o.head_stride, args.o.row_stride = o.stride()[:3]
    launch.like = _like_query(q, value_dim)
    launch.shape, launch.dtype, launch.torch_device = tuple(o.shape), q.dtype, q.device
    launch.lse_shape = (batch, heads, q_len) if want_lse else None
    if want_lse:
        args.lse_batch_stride, args.lse_head_stride = heads * q_len, q_len
    launch.args = args
    return launch


def _failed(launch: _Launch, args: AttentionArgs, status: int, stream: int | None) -> None:
    """A thread that has not used the GPU yet has no current context: then it gets one, and the launch a second try."""
    error = exception(status)
    if status == INVALID and launch.device >= 0:
        current = C.c_void_p()
        _cuda.driver().cuCtxGetCurrent(C.byref(current))
        if not current.value:
            _cuda.make_current(launch.device)
            check(_run(launch.kernel.pointer, _byref(args), stream))
            return
    raise error


def _start(launch: _Launch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """Makes the outputs and launches; the device of the tensors is the current one."""
    o = _empty_like(q) if launch.like else _empty(launch.shape, dtype=launch.dtype, device=launch.torch_device)
    args = _copy_args(launch.args)
    device = launch.device
    if launch.copies is not None:
        q, k, v = (x.contiguous() if copied else x for x, copied in zip((q, k, v), launch.copies))
    q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if device >= 0:
        if (q_data | k_data | v_data) & 15:
            q, k, v = _aligned(args, q, k, v)
            q_data, k_data, v_data = q.data_ptr(), k.data_ptr(), v.data_ptr()
        stream: int | None = _raw_stream(device)
        if _is_capturing():
            launch.kernel.keep_for_graph()
    else:
        stream = None
    args.q.data, args.k.data, args.v.data, args.o.data = q_data, k_data, v_data, o.data_ptr()
    lse = None
    if launch.lse_shape is not None:
        lse = _empty(launch.lse_shape, dtype=torch.float32, device=launch.torch_device)
        args.lse = lse.data_ptr()
    size = launch.kernel.workspace_bytes
    if size:
        workspace = _empty(size + 255, dtype=torch.uint8, device=launch.torch_device)
        args.workspace, args.workspace_bytes = (workspace.data_ptr() + 255) & -256, size
    status = _run(launch.kernel.pointer, _byref(args), stream)
    if status:
        _failed(launch, args, status, stream)
    return o if lse is None else (o, lse)


def _aligned(args: AttentionArgs, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Copies, on the same device, of those whose address is no multiple of 16 bytes; their strides go to args."""
    result = []
    for name, x in zip("qkv", tensors):
        if x.data_ptr() & 15:
            x = x.clone(memory_format=torch.contiguous_format)
            operand = getattr(args, name)
            operand.batch_stride, operand.head_stride, operand.row_stride = x.stride()[:3]
        result.append(x)
    return result


def _eager(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Mask, scale: float | None, want_lse: bool,
           grouped: bool) -> Any:  # fmt: skip
    key = (
        q.shape, q.stride(), k.shape, k.stride(), v.shape, v.stride(), q.dtype, k.dtype, v.dtype, q.device, k.device, v.device,
        scale, want_lse, grouped,
    )  # fmt: skip
    launch = mask._launches.get(key)
    if launch is None or launch.generation != _kernels._generation:
        launch = _prepare(q, k, v, mask, scale, want_lse, grouped)
        remember(mask._launches, key, launch, _KEPT_LAUNCHES)
    device = launch.device
    if device < 0 or device == _current_device():
        return _start(launch, q, k, v)
    with torch.cuda.device(device):
        return _start(launch, q, k, v)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Mask | str,
    scale: float | None = None,
    return_lse: bool = False,
    enable_gqa: bool = False,
) -> Any:
    """Softmax attention over the allowed pairs of `mask`, on the tensors' device.

    On the GPU the kernel runs on the current stream; nothing is synchronised. The first call with a mask and shapes compiles
    (or loads from the disk cache); make it before capturing a CUDA graph. A query with no allowed key gets o = 0 and
    lse = -inf. What keys outside the mask hold, NaN even, has no influence.

    Parameters
    ----------
    query : Tensor [batch, heads, q_len, dim]
        float16 or bfloat16; float32 on the CPU too. Any strides. `dim` is a multiple of 8, at most 256.
    key : Tensor [batch, kv_heads, kv_len, dim]
        Of the same dtype and device.
    value : Tensor [batch, kv_heads, kv_len, value_dim]
        Of the same dtype and device.
    mask : Pattern, PatternMap or str
        Which pairs may attend; a str is an expression of the pattern language.
    scale : float, optional
        Of q k^T; 1 / sqrt(dim) when None.
    return_lse : bool
        Whether to return the log-sum-exp too.
    enable_gqa : bool
        Whether `heads` may be a multiple of `kv_heads`: query head h then reads key head h // (heads // kv_heads).

    Returns
    -------
    o : Tensor [batch, heads, q_len, value_dim]
        In the dtype of `query`, and laid out as it where the dims agree.
    lse : Tensor [batch, heads, q_len], float32
        Natural logarithm of the sum of exp of scaled scores; only with `return_lse`.

    Raises
    ------
    ValueError
        When shapes, dtypes, devices or lengths do not fit.
    UnsupportedError
        When there is no implementation; there is none yet of the backward pass: use ``torch.no_grad()``.
    """
    if _is_compiling():
        return _traced(query, key, value, mask, scale, return_lse, enable_gqa)
    if not isinstance(mask, Mask):
        mask = as_mask(mask)
    plain = type(query) is _Tensor and type(key) is _Tensor and type(value) is _Tensor
    if _is_grad_enabled() and (not plain or query.requires_grad or key.requires_grad or value.requires_grad):
        _refuse_gradients(query, key, value)
    if not plain or _dispatch_modes() or _functorch_level() is not None:
        _check_tensors(query, key, value, enable_gqa)
        return _traced(query, key, value, mask, scale, return_lse, enable_gqa)
    return _eager(query, key, value, mask, scale, return_lse, enable_gqa)


def _refuse_gradients(*tensors: Any) -> None:
    for name, x in zip(_NAMES, tensors):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            raise UnsupportedError(f"{name} requires a gradient; there is no backward pass yet: call under torch.no_grad()")


def _traced(q: Any, k: Any, v: Any, mask: Any, scale: float | None, want_lse: bool, grouped: bool) -> Any:
    """The operator: the mask travels as its key."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise UnsupportedError(
            "query, key or value requires a gradient; there is no backward pass yet: call under torch.no_grad()"
        )
    if isinstance(mask, str):
        mask_key = text_key(mask)
    elif isinstance(mask, Mask):
        mask_key = mask.key
    else:
        raise ValueError("mask must be a Pattern, a PatternMap or the text of an expression")
    if want_lse:
        return torch.ops.splat.attention_lse(q, k, v, mask_key, scale, grouped)
    return torch.ops.splat.attention(q, k, v, mask_key, scale, grouped)


# ---- The operators ----

_library = torch.library.Library("splat", "DEF")
_SIGNATURE = "(Tensor query, Tensor key, Tensor value, str mask, float? scale=None, bool enable_gqa=False) -> "
_TAGS = (torch.Tag.pt2_compliant_tag,)


def _op(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: str, scale: float | None = None,
        enable_gqa: bool = False) -> torch.Tensor:  # fmt: skip
    return _eager(q, k, v, by_key(mask), scale, False, enable_gqa)


def _op_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: str, scale: float | None = None,
            enable_gqa: bool = False) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return _eager(q, k, v, by_key(mask), scale, True, enable_gqa)


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: str, scale: float | None = None,
          enable_gqa: bool = False) -> torch.Tensor:  # fmt: skip
    _check_tensors(q, k, v, enable_gqa)
    _kernels.check_scale(scale)
    found = by_key(mask)
    pin(found)
    if found.bound:
        lengths = f"{found.q_len} x {found.kv_len}"
        fits = q.shape[2] == found.q_len and k.shape[2] == found.kv_len
        torch._check(fits, lambda: f"the mask is {lengths}; q_len x kv_len is {q.shape[2]} x {k.shape[2]}")
    return _new_output(q, v.shape[3])


def _fake_lse(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: str, scale: float | None = None,
              enable_gqa: bool = False) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    o = _fake(q, k, v, mask, scale, enable_gqa)
    return o, q.new_empty(q.shape[:3], dtype=torch.float32)


for _name, _results, _function, _fake_function in (
    ("attention", "Tensor", _op, _fake),
    ("attention_lse", "(Tensor, Tensor)", _op_lse, _fake_lse),
):
    _library.define(_name + _SIGNATURE + _results, tags=_TAGS)
    _library.impl(_name, _function, "CPU")
    _library.impl(_name, _function, "CUDA")
    torch.library.register_fake(f"splat::{_name}", _fake_function, lib=_library)


# ---- Masks of FlexAttention ----


def from_mask_mod(mask_mod: Callable[..., torch.Tensor], batch: int | None, heads: int | None, q_len: int,
                  kv_len: int | None = None, device: Any = "cpu") -> Mask:  # fmt: skip
    """A mask from a `mask_mod` as FlexAttention takes it, in place of ``create_block_mask``.

    Parameters
    ----------
    mask_mod : callable
        ``mask_mod(b, h, q_idx, kv_idx)`` with index tensors that broadcast; returns a bool tensor.
    batch, heads : int or None
        How many batch entries and heads have masks of their own; None where all share one.
    q_len, kv_len : int
        Lengths; `kv_len` defaults to `q_len`.
    device
        Where the indices are made: that of tensors that `mask_mod` reads.

    Returns
    -------
    Pattern or PatternMap
        The mask is evaluated for every pair, once: where an expression says the same, it is cheaper to make.
    """
    q_len, kv_len = _bound_lengths(q_len, kv_len)
    columns = torch.arange(kv_len, device=device)[None, :]
    band = max(1, (1 << 22) // kv_len)

    def entry(b: int, h: int) -> Pattern:
        array = np.empty((q_len, kv_len), np.bool_)
        for first in range(0, q_len, band):
            rows = torch.arange(first, min(first + band, q_len), device=device)[:, None]
            allowed = mask_mod(torch.tensor(b, device=device), torch.tensor(h, device=device), rows, columns)
            array[first : first + band] = torch.broadcast_to(allowed, (len(rows), kv_len)).cpu().numpy()
        return _dense(array)

    if batch is None and heads is None:
        return entry(0, 0)
    return PatternMap([[entry(b, h) for h in range(heads or 1)] for b in range(batch or 1)])
