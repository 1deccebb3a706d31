"""Random attention problems, and attention in NumPy's float64 with the bound that results are held to."""

import dataclasses

import numpy as np
import splat
from hypothesis import strategies as st
from patterns import expressions, masks

ULP = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def reference(q, k, v, allowed, scale=None):
    """o, lse and the magnitude that errors of o scale with, in float64; rows with nothing allowed give 0 and -inf.

    q, k, v are [batch, heads, length, dim]; allowed broadcasts to [batch, heads, q_len, kv_len].
    """
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * scale
    allowed = np.broadcast_to(allowed, scores.shape)
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    base = np.where(np.isfinite(top), top, 0)
    weights = np.where(allowed, np.exp(scores - base), 0)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, np.log(total) + base, -np.inf)[..., 0]
    weights = weights / np.where(total > 0, total, 1)
    return weights @ v, lse, weights @ abs(v)


def assert_right(o, lse, q, k, v, allowed, dtype, scale=None):
    """o (and lse, unless None) agree with the reference to what roundings of `dtype` and of float32 sums explain."""
    want, want_lse, reach = reference(q, k, v, allowed, scale)
    q, k = (np.asarray(x).astype(np.float64) for x in (q, k))
    factor = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    score_error = 2e-7 * factor * np.abs(q).max() * np.abs(k).sum(axis=3).max() + 1e-5
    ulp = ULP[dtype]
    o = np.asarray(o).astype(np.float64)
    assert o.shape == want.shape and not np.isnan(o).any()
    weight_error = score_error + (0 if dtype == "float32" else 2 * ulp)
    assert np.all(np.abs(o - want) <= 2 * weight_error * reach + ulp * np.abs(want) + 1e-7)
    empty = np.broadcast_to(~np.broadcast_to(allowed, want.shape[:2] + np.shape(allowed)[-2:]).any(axis=-1), want_lse.shape)
    assert np.all(o[empty] == 0)
    if lse is not None:
        lse = np.asarray(lse)
        assert lse.shape == want_lse.shape and lse.dtype == np.float32
        assert np.all(lse[empty] == -np.inf) and np.all(np.isfinite(lse[~empty]))
        limit = score_error + 1e-6 * np.abs(want_lse[~empty])
        off = np.abs(lse[~empty] - want_lse[~empty])
        assert np.all(off <= limit), (off.max(), limit.min())


@dataclasses.dataclass
class Problem:
    """q, k, v in float64, not yet rounded to `dtype`."""

    mask: splat.Mask
    allowed: np.ndarray  # [1 or batch, 1 or heads, q_len, kv_len]
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    dtype: str
    scale: float | None


@st.composite
def some_masks(draw, batch, heads, max_len):
    """(mask, allowed): an expression without lengths, an array, or a map of arrays."""
    kind = draw(st.sampled_from(["expression", "expression", "array", "heads", "batch"]))
    if kind == "expression":
        expression, q_len, kv_len = draw(expressions), draw(st.integers(1, max_len)), draw(st.integers(1, max_len))
        align = draw(st.sampled_from(["bottom_right", "top_left"]))
        off = kv_len - q_len if align == "bottom_right" else 0
        return splat.pattern(expression.text, align=align), expression.array(q_len, kv_len, off)[None, None]
    first = draw(masks(max_len))
    if kind == "array":
        return splat.from_dense(first), first[None, None]
    entries = (1 if kind == "heads" else batch, heads)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stack = np.stack([np.roll(first, rng.integers(0, 50), axis=1) for _ in range(entries[0] * entries[1])])
    stack = stack.reshape(*entries, *first.shape)
    return splat.from_dense(stack), stack


@st.composite
def problems(draw, dtypes=("float32", "float16", "bfloat16"), max_len=100):
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2, 3]))
    mask, allowed = draw(some_masks(batch, kv_heads * group, max_len))
    q_len, kv_len = allowed.shape[2:]
    dim, value_dim = 8 * draw(st.integers(1, 9)), 8 * draw(st.integers(1, 9))
    if draw(st.booleans()):
        value_dim = dim
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q = rng.standard_normal((batch, kv_heads * group, q_len, dim)) * draw(st.sampled_from([0.01, 1.0, 6.0]))
    k, v = rng.standard_normal((batch, kv_heads, kv_len, dim)), rng.standard_normal((batch, kv_heads, kv_len, value_dim))
    return Problem(mask, allowed, q, k, v, draw(st.sampled_from(dtypes)), draw(st.sampled_from([None, 0.125, 1.0])))
