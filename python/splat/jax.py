"""Attention on JAX arrays, through XLA's foreign-function interface: on the GPU through compiled kernels, on the CPU
through the CPU engine.

    import splat, splat.jax
    mask = splat.causal() & splat.window(1023, 0)
    o = splat.jax.attention(q, k, v, mask)                          # [B, H, S, D]
    o = splat.jax.dot_product_attention(q, k, v, mask)              # [B, S, H, D], as jax.nn.dot_product_attention

Inside ``jit`` a call is one custom call of XLA: Python is not involved, and nothing is done on the host but the look-up of
the kernel and its launch on XLA's stream. The mask is static: close over it, or name it in `static_argnames`. The kernel is
compiled, or loaded from the disk cache, when the jitted function first runs.
"""

from __future__ import annotations

import ctypes as C
import functools
import hashlib
import threading
from typing import Any, Callable, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from . import _kernels, _xla_build
from ._library import DTYPES, UnsupportedError, lib
from ._pattern import Mask, Pattern, as_mask

__all__ = ["attention", "attention_fn", "dot_product_attention"]

_TARGET = "splat_attention"
_NAMES = ("query", "key", "value")
_MAX_EXPRESSION = 4096  # bytes of an expression that travel with compiled code


class _Functions(C.Structure):
    """struct splat_functions of _xla.c."""

    _fields_: ClassVar[Any] = [
        (name, C.c_void_p)
        for name in ("compile", "run", "workspace_bytes", "mask_from_expression", "last_error", "options_init",
                     "attention_args_init", "context")
    ]  # fmt: skip


def _register() -> C.CDLL:
    shim = _xla_build.load(jax.ffi.include_dir())

    def address(name: str) -> int:
        return C.cast(getattr(lib, f"splat_{name}"), C.c_void_p).value or 0

    functions = _Functions(*(address(name) for name, _ in _Functions._fields_[:-1]), _kernels.context())
    shim.splat_xla_start.argtypes = [C.POINTER(_Functions)]
    shim.splat_xla_start.restype = None
    shim.splat_xla_start(C.byref(functions))
    shim.splat_xla_add_mask.argtypes = [C.c_uint64, C.c_uint64, C.c_int64, C.c_int64, C.c_void_p]
    jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(shim.splat_xla_cpu), platform="cpu")
    cuda = {stage: jax.ffi.pycapsule(shim.splat_xla_cuda) for stage in ("initialize", "execute")}
    jax.ffi.register_ffi_target(_TARGET, cuda, platform="CUDA")
    return shim


_shim = _register()
_lock = threading.Lock()
_known: set[tuple[int, int, int, int]] = set()


def _make_known(mask: Mask) -> tuple[int, int]:
    """The mask's number, under which compiled code asks for it; from now on the mask lives as long as the process."""
    digest = hashlib.sha256(repr(mask._identity()).encode()).digest()
    low, high = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")
    assert mask.q_len is not None and mask.kv_len is not None
    entry = (low, high, mask.q_len, mask.kv_len)
    with _lock:
        if entry not in _known:
            if _shim.splat_xla_add_mask(low, high, mask.q_len, mask.kv_len, mask._pointer()):
                raise MemoryError("no memory for a mask")
            _known.add(entry)
            _held.append(mask)
    return low, high


_held: list[Mask] = []


def _signed(number: int) -> np.int64:
    return np.uint64(number).astype(np.int64)


def _result(shape: tuple[int, ...], dtype: Any, *operands: Any) -> jax.ShapeDtypeStruct:
    """The type of a result that varies over the mesh axes that any operand varies over, inside shard_map."""
    vary: frozenset[Any] = frozenset()
    for x in operands:
        vary |= getattr(jax.typeof(x), "vma", frozenset()) if hasattr(jax, "typeof") else frozenset()
    return jax.ShapeDtypeStruct(shape, dtype, **({"vma": vary} if vary else {}))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def _call(q: Any, k: Any, v: Any, mask: Mask, scale: float, want_lse: bool, bshd: bool) -> Any:
    low, high = _make_known(mask)
    expression = ""
    if isinstance(mask, Pattern) and mask.text is not None and len(mask.text) <= _MAX_EXPRESSION:
        expression = f"{mask.align}:{mask.text}"
    batch, heads, q_len = (q.shape[0], q.shape[2], q.shape[1]) if bshd else q.shape[:3]
    results = [_result((*q.shape[:3], v.shape[3]), q.dtype, q, k, v)]
    if want_lse:
        results.append(_result((batch, heads, q_len), jnp.float32, q, k, v))
    # A map with masks of its own for each batch entry cannot serve a batch that vmap has made larger.
    vmap_method = "sequential" if mask.map_batch > 1 else "broadcast_all"
    call = jax.ffi.ffi_call(_TARGET, results, vmap_method=vmap_method)
    out = call(q, k, v, bshd=np.int32(bshd), expression=expression, key_low=_signed(low), key_high=_signed(high),
               scale=np.float32(scale))  # fmt: skip
    return tuple(out) if want_lse else out[0]


def _refuse_gradient(*_: Any) -> Any:
    raise UnsupportedError("splat.jax.attention was differentiated; there is no backward pass yet: use jax.lax.stop_gradient")


_call.defvjp(_refuse_gradient, _refuse_gradient)


def _check(q: Any, k: Any, v: Any, bshd: bool) -> None:
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"dtype is {q.dtype} in query, {k.dtype} in key and {v.dtype} in value; it must be the same in all")
    if q.dtype.name not in DTYPES:
        raise UnsupportedError(f"query has dtype {q.dtype}; attention takes float16 and bfloat16, and float32 on the CPU")
    if q.dtype == jnp.float32:
        for x in (q, k, v):
            if (
                isinstance(x, jax.Array)
                and not isinstance(x, jax.core.Tracer)
                and any(d.platform == "gpu" for d in x.devices())
            ):
                raise UnsupportedError("query has dtype float32; the GPU runs float16 and bfloat16")
    axes = "[batch, length, heads, dim]" if bshd else "[batch, heads, length, dim]"
    shapes = [tuple(x.shape) for x in (q, k, v)]
    if bshd and all(len(s) == 4 for s in shapes):
        shapes = [(s[0], s[2], s[1], s[3]) for s in shapes]
    _kernels.check_shapes(shapes[0], shapes[1], shapes[2], _NAMES, axes=axes)


def attention(query: Any, key: Any, value: Any, mask: Mask | str, *, scale: float | None = None, return_lse: bool = False,
              layout: str = "bhsd") -> Any:  # fmt: skip
    """Softmax attention over the allowed pairs of `mask`. Works under ``jit``, ``vmap`` and ``shard_map``.

    A query with no allowed key gets o = 0 and lse = -inf. What keys outside the mask hold, NaN even, has no influence.

    Parameters
    ----------
    query : array [batch, heads, q_len, dim], or [batch, q_len, heads, dim] with `layout` "bshd"
        float16 or bfloat16; float32 on the CPU too. `dim` is a multiple of 8, at most 256.
    key : array [batch, kv_heads, kv_len, dim] (or "bshd")
        Of the same dtype. `heads` is a multiple of `kv_heads`: query head h reads key head h // (heads // kv_heads).
    value : array [batch, kv_heads, kv_len, value_dim] (or "bshd")
        Of the same dtype.
    mask : Pattern, PatternMap or str
        Which pairs may attend; static under ``jit``. A str is an expression of the pattern language. Under ``shard_map`` it
        is the mask of what a device holds: over batch and heads that is the mask itself, unless it is a map.
    scale : float, optional
        Of q k^T, static; 1 / sqrt(dim) when None.
    return_lse : bool
        Whether to return the log-sum-exp too.
    layout : {"bhsd", "bshd"}
        Order of the axes of query, key, value and o. Neither costs a transposition.

    Returns
    -------
    o : array, laid out as the query, with value_dim in place of dim
    lse : array [batch, heads, q_len], float32
        Natural logarithm of the sum of exp of scaled scores; only with `return_lse`.

    Raises
    ------
    ValueError
        When shapes, dtypes or lengths do not fit.
    UnsupportedError
        When there is no implementation; there is none yet of the gradient.
    """
    if layout not in ("bhsd", "bshd"):
        raise ValueError(f"layout is {layout!r}; it must be 'bhsd' or 'bshd'")
    bshd = layout == "bshd"
    mask = as_mask(mask)
    q, k, v = (x if hasattr(x, "dtype") and hasattr(x, "shape") else jnp.asarray(x) for x in (query, key, value))
    _check(q, k, v, bshd)
    q_len, kv_len, batch, heads = q.shape[1 if bshd else 2], k.shape[1 if bshd else 2], q.shape[0], q.shape[2 if bshd else 1]
    mask = mask.at(q_len, kv_len)
    _kernels.check_map(mask, batch, heads)
    if any(d % 8 or not 8 <= d <= 256 for d in (q.shape[3], v.shape[3])):
        raise ValueError(f"dim is {q.shape[3]} and value_dim {v.shape[3]}; each must be a multiple of 8 from 8 to 256")
    factor = _kernels.check_scale(scale)
    if factor and not (0 < factor < float("inf")):
        raise ValueError(f"scale is {factor}; it must be finite and above 0, or None for 1 / sqrt(dim)")
    return _call(q, k, v, mask, factor, bool(return_lse), bshd)


def dot_product_attention(query: Any, key: Any, value: Any, mask: Mask | str, *, scale: float | None = None,
                          return_lse: bool = False) -> Any:  # fmt: skip
    """`attention` on the arrays of ``jax.nn.dot_product_attention``: [batch, length, heads, dim], or without batch.

    Parameters and results as there, in layout "bshd"; lse is [batch, heads, q_len], or without batch.
    """
    if getattr(query, "ndim", 4) == 3:
        out = attention(query[None], key[None], value[None], mask, scale=scale, return_lse=return_lse, layout="bshd")
        return (out[0][0], out[1][0]) if return_lse else out[0]
    return attention(query, key, value, mask, scale=scale, return_lse=return_lse, layout="bshd")


def attention_fn(mask: Mask | str, *, scale: float | None = None) -> Callable[..., Any]:
    """A function for the `attention_fn` argument of Flax's multi-head attention (linen and nnx).

    Parameters
    ----------
    mask : Pattern, PatternMap or str
        Takes the place of the arrays that Flax would be given as `mask`.

    Returns
    -------
    callable
        ``f(query, key, value, ...)`` on [batch..., length, heads, dim]. A `bias`, a `mask` or dropout raises
        `UnsupportedError`: nothing that was asked for is left out silently.
    """

    def apply(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, dropout_rng: Any = None,
              dropout_rate: float = 0.0, deterministic: bool = False, dtype: Any = None, **_: Any) -> Any:  # fmt: skip
        if bias is not None or mask is not None:
            raise UnsupportedError("a bias or mask array was given; the pattern of splat.jax.attention_fn takes their place")
        if dropout_rate and not deterministic:
            raise UnsupportedError(f"dropout_rate is {dropout_rate}; dropout of attention weights is not supported")
        q, k, v = (x if dtype is None else jnp.asarray(x, dtype) for x in (query, key, value))
        lead = q.shape[:-3]
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in (q, k, v))
        o = dot_product_attention(q, k, v, pattern, scale=scale)
        return o.reshape(*lead, *o.shape[-3:])

    pattern = as_mask(mask)
    return apply
