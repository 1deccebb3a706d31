"""SDDMM, softmax and SpMM on the values of a mask, on NumPy arrays, through the CPU engine.

Values are an array [batch, heads, pairs]: for each (batch, head) a number for each allowed pair, row by row, columns ascending,
which is the `data` of CSR with sorted indices (`Pattern.to_csr`). Under a map, whose masks may have different numbers of pairs, the last axis is that of the largest,
and what lies beyond a mask's own pairs is zero in results and ignored in inputs.
"""

from __future__ import annotations

import ctypes as C
from typing import Any, Literal, overload

import numpy as np

from . import _kernels
from ._library import DTYPES, SDDMM, SOFTMAX, SPMM, SPMM_TRANSPOSED, SparseArgs, Values, check, lib
from ._numpy import _operand, _readable, _tensor
from ._pattern import Mask, Pattern, as_mask


def _pairs(mask: Mask) -> int:
    """The most pairs that one mask has."""
    if isinstance(mask, Pattern):
        return mask.pairs
    return max(mask[b, h].pairs for b in range(mask.map_batch) for h in range(mask.map_heads))  # type: ignore[index]


def _check_values(values: np.ndarray, mask: Mask) -> None:
    pairs = _pairs(mask)
    if values.ndim != 3 or 0 in values.shape[:2] or values.shape[2] != pairs:
        raise ValueError(f"values has shape {values.shape}; it must be [batch, heads, {pairs}], a value for each allowed pair")


def _values(array: np.ndarray) -> Values:
    return Values(array.ctypes.data, array.strides[0] // array.itemsize, array.strides[1] // array.itemsize)


def _args(mask: Mask, batch: int, heads: int, kv_heads: int, scale: Any) -> SparseArgs:
    args = SparseArgs()
    lib.splat_sparse_args_init(C.byref(args))
    args.batch, args.heads, args.kv_heads, args.q_len, args.kv_len = batch, heads, kv_heads, mask.q_len, mask.kv_len
    args.scale = 0.0 if scale is None else float(scale)
    if scale is not None and not 0.0 < args.scale < float("inf"):
        raise ValueError(f"scale is {scale:g}; it must be finite and above 0, or None for the default")
    return args


def _rows(name: str, array: Any, axes: str) -> np.ndarray:
    array = _operand(name, array)
    if array.ndim != 4 or 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}; it must be {axes}, no axis empty")
    return _readable(array)


def _same_type(**arrays: np.ndarray) -> None:
    kinds = {name: a.dtype for name, a in arrays.items()}
    if len(set(kinds.values())) > 1:
        raise ValueError("dtype is " + " and ".join(f"{d} in {n}" for n, d in kinds.items()) + "; it must be the same in all")


def sddmm(q: np.ndarray, k: np.ndarray, mask: Mask | str, scale: float | None = None) -> np.ndarray:
    """Sampled dense-dense product: ``scale * q k^T`` at the allowed pairs of `mask`, computed on the CPU.

    Parameters
    ----------
    q : ndarray [batch, heads, q_len, dim]
        float32, float16, or bfloat16 of `ml_dtypes`; any strides; `dim` is a multiple of 8, at most 256.
    k : ndarray [batch, kv_heads, kv_len, dim]
        Of the same dtype. Head h reads head h // (heads // kv_heads).
    mask : Pattern, PatternMap or str
        The pairs.
    scale : float, optional
        1 / sqrt(dim) when None.

    Returns
    -------
    values : ndarray [batch, heads, pairs]
        In the dtype of q, in the order of CSR: row by row, columns ascending.

    Raises
    ------
    ValueError
        When shapes, strides or lengths do not fit; the sentence names the argument, its value and the limit.
    """
    q, k = _rows("q", q, "[batch, heads, q_len, dim]"), _rows("k", k, "[batch, kv_heads, kv_len, dim]")
    _same_type(q=q, k=k)
    _kernels.check_shapes(q.shape, k.shape, k.shape, ("q", "k", "k"))
    (batch, heads, q_len, dim), kv_heads = q.shape, k.shape[1]
    mask = as_mask(mask).at(q_len, k.shape[2])
    kernel = _kernels.get(mask, DTYPES[q.dtype.name], dim, dim, batch, heads, kv_heads, -1, SDDMM)
    args = _args(mask, batch, heads, kv_heads, scale)
    values = np.zeros((batch, heads, _pairs(mask)), q.dtype)
    args.q, args.k, args.values = _tensor(q), _tensor(k), _values(values)
    check(lib.splat_run_sparse(kernel.pointer, C.byref(args), None))
    return values


@overload
def sparse_softmax(values: np.ndarray, mask: Mask, scale: float | None = ..., return_lse: Literal[False] = ...) -> np.ndarray: ...
@overload
def sparse_softmax(values: np.ndarray, mask: Mask, scale: float | None = ..., *, return_lse: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...  # fmt: skip
def sparse_softmax(values: np.ndarray, mask: Mask, scale: float | None = None, return_lse: bool = False) -> Any:
    """Softmax of ``scale * values`` over the allowed pairs of each row, computed on the CPU with sums in float32.

    Parameters
    ----------
    values : ndarray [batch, heads, pairs]
        As `sddmm` gives them.
    mask : Pattern or PatternMap
        With its lengths.
    scale : float, optional
        1 when None.
    return_lse : bool
        Whether to return the log-sum-exp too: float32 [batch, heads, q_len], -inf for a row without pairs.

    Returns
    -------
    weights : ndarray [batch, heads, pairs]
        Of the same dtype. A row whose values are all -inf becomes zeros.
    """
    mask, values = _bound(mask), _operand("values", values)
    _check_values(values, mask)
    values = np.ascontiguousarray(values)
    batch, heads, q_len = values.shape[0], values.shape[1], mask.q_len
    kernel = _kernels.get(mask, DTYPES[values.dtype.name], 8, 8, batch, heads, heads, -1, SOFTMAX)
    args = _args(mask, batch, heads, heads, scale)
    weights = np.zeros_like(values)
    args.scores, args.values = _values(values), _values(weights)
    lse = np.empty((batch, heads, q_len), np.float32) if return_lse else None
    if lse is not None:
        args.lse, args.lse_batch_stride, args.lse_head_stride = lse.ctypes.data, heads * q_len, q_len
    check(lib.splat_run_sparse(kernel.pointer, C.byref(args), None))
    return (weights, lse) if return_lse else weights


def spmm(values: np.ndarray, x: np.ndarray, mask: Mask, transposed: bool = False) -> np.ndarray:
    """Sparse times dense: ``A x``, or ``A^T x``, A the [q_len, kv_len] matrix of `values`, computed on the CPU.

    Only allowed pairs take part: what x holds elsewhere, NaN even, has no influence.

    Parameters
    ----------
    values : ndarray [batch, heads, pairs]
        As `sddmm` gives them.
    x : ndarray [batch, kv_heads, kv_len, dim]
        Of the same dtype; head h reads head h // (heads // kv_heads). `transposed`: [batch, heads, q_len, dim].
    mask : Pattern or PatternMap
        With its lengths.
    transposed : bool
        Whether to multiply with A^T.

    Returns
    -------
    y : ndarray [batch, heads, q_len, dim]
        `transposed`: [batch, heads, kv_len, dim].
    """
    mask, values = _bound(mask), _operand("values", values)
    _check_values(values, mask)
    values, (batch, heads) = np.ascontiguousarray(values), values.shape[:2]
    x = _rows("x", x, "[batch, heads, rows, dim]")
    _same_type(values=values, x=x)
    rows, out_rows = (mask.q_len, mask.kv_len) if transposed else (mask.kv_len, mask.q_len)
    if x.shape[0] != batch or x.shape[2] != rows or heads % x.shape[1] or (transposed and x.shape[1] != heads):
        heads_wanted = f"{heads}" if transposed else f"a divisor of {heads}"
        raise ValueError(f"x has shape {x.shape}; it must be [{batch}, {heads_wanted}, {rows}, dim]")
    dim, op = x.shape[3], SPMM_TRANSPOSED if transposed else SPMM
    kernel = _kernels.get(mask, DTYPES[x.dtype.name], dim, dim, batch, heads, x.shape[1], -1, op)
    args = _args(mask, batch, heads, x.shape[1], None)
    y = np.empty((batch, heads, out_rows, dim), x.dtype)
    args.values, args.x, args.y = _values(values), _tensor(x), _tensor(y)
    check(lib.splat_run_sparse(kernel.pointer, C.byref(args), None))
    return y


def _bound(mask: Any) -> Any:
    mask = as_mask(mask)
    if not mask.bound:
        raise ValueError("mask has no lengths; values are those of a mask with lengths: give it q_len (and kv_len)")
    return mask
