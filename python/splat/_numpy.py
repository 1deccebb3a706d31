"""Attention on NumPy arrays, through the CPU engine."""

from __future__ import annotations

import ctypes as C
from typing import Any, Literal, overload

import numpy as np

from . import _kernels
from ._library import DTYPES, Tensor, UnsupportedError, check, lib
from ._pattern import Mask, as_mask

_NAMES = ("q", "k", "v")


def _operand(name: str, array: Any) -> np.ndarray:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is {type(array).__module__}.{type(array).__name__}; it must be a numpy.ndarray (splat.torch and splat.jax take theirs)")
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise UnsupportedError(
            f"{name} has dtype {array.dtype}; the CPU engine takes float32, float16 and bfloat16 (of ml_dtypes), in native "
            "byte order"
        )
    return array


def _readable(array: np.ndarray) -> np.ndarray:
    """The array itself when its last axis is contiguous and no stride is negative or odd; else a copy."""
    size = array.itemsize
    good = (array.strides[3] == size or array.shape[3] == 1) and array.ctypes.data % size == 0
    return array if good and all(s >= 0 and s % size == 0 for s in array.strides[:3]) else np.ascontiguousarray(array)


def _tensor(array: np.ndarray) -> Tensor:
    size = array.itemsize
    return Tensor(array.ctypes.data, *(s // size for s in array.strides[:3]))


@overload
def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Mask | str, scale: float | None = ...,
              return_lse: Literal[False] = ...) -> np.ndarray: ...  # fmt: skip
@overload
def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Mask | str, scale: float | None = ..., *,
              return_lse: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...  # fmt: skip
def attention(q, k, v, mask, scale=None, return_lse=False):
    """Softmax attention over the allowed pairs of `mask`, computed on the CPU.

    ``o = softmax(scale * q k^T, restricted to the mask) v``, with sums in float32. A query with no allowed key gets o = 0
    and lse = -inf. What keys outside the mask hold, NaN even, has no influence.

    Parameters
    ----------
    q : ndarray [batch, heads, q_len, dim]
        Queries: float32, float16, or bfloat16 of `ml_dtypes`. Any strides; `dim` is a multiple of 8, at most 256.
    k : ndarray [batch, kv_heads, kv_len, dim]
        Keys, of the same dtype. `heads` is a multiple of `kv_heads`: query head h reads key head h // (heads // kv_heads).
    v : ndarray [batch, kv_heads, kv_len, value_dim]
        Values, of the same dtype.
    mask : Pattern, PatternMap or str
        Which pairs may attend; a str is an expression of the pattern language.
    scale : float, optional
        Of q k^T; 1 / sqrt(dim) when None.
    return_lse : bool
        Whether to return the log-sum-exp too.

    Returns
    -------
    o : ndarray [batch, heads, q_len, value_dim]
        In the dtype of q.
    lse : ndarray [batch, heads, q_len], float32
        Natural logarithm of the sum of exp of scaled scores; only with `return_lse`.

    Raises
    ------
    ValueError
        When shapes, strides or lengths do not fit; the sentence names the argument, its value and the limit.
    UnsupportedError
        When the dtype or a dimension has no implementation.
    """
    mask = as_mask(mask)
    q, k, v = (_operand(name, x) for name, x in zip(_NAMES, (q, k, v)))
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"dtype is {q.dtype} in q, {k.dtype} in k and {v.dtype} in v; it must be the same in all")
    _kernels.check_shapes(q.shape, k.shape, v.shape, _NAMES)
    batch, heads, q_len, dim = q.shape
    kv_heads, kv_len, value_dim = k.shape[1], k.shape[2], v.shape[3]
    mask = mask.at(q_len, kv_len)
    kernel = _kernels.get(mask, DTYPES[q.dtype.name], dim, value_dim, batch, heads, kv_heads, -1)
    args = _kernels.make_args(batch, heads, kv_heads, q_len, kv_len, _kernels.check_scale(scale))
    q, k, v = _readable(q), _readable(k), _readable(v)
    o = np.empty((batch, heads, q_len, value_dim), q.dtype)
    args.q, args.k, args.v, args.o = _tensor(q), _tensor(k), _tensor(v), _tensor(o)
    if return_lse:
        lse = np.empty((batch, heads, q_len), np.float32)
        args.lse, args.lse_batch_stride, args.lse_head_stride = lse.ctypes.data, heads * q_len, q_len
    if kernel.workspace_bytes:
        workspace = np.empty(kernel.workspace_bytes + 255, np.uint8)
        args.workspace, args.workspace_bytes = (workspace.ctypes.data + 255) // 256 * 256, kernel.workspace_bytes
    check(lib.splat_run(kernel.pointer, C.byref(args), None))
    return (o, lse) if return_lse else o
