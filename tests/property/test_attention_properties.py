"""Random attention problems on the CPU device against NumPy in float64."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import splat_bindings as splat
from patterns import examples, expressions, masks


def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


ENCODE = {splat.FP32: lambda x: x.astype(np.float32), splat.FP16: lambda x: x.astype(np.float16), splat.BF16: to_bf16}
DECODE = {splat.FP32: np.asarray, splat.FP16: np.asarray, splat.BF16: from_bf16}
ULP = {splat.FP32: 2.0**-24, splat.FP16: 2.0**-11, splat.BF16: 2.0**-8}


def reference(q, k, v, mask, scale):
    """o, lse and the magnitude that errors of o scale with; rows with nothing allowed give 0 and -inf."""
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    scores = np.where(mask, q.astype(np.float64) @ k.transpose(0, 1, 3, 2) * scale, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.where(mask, np.exp(scores - np.where(np.isfinite(top), top, 0)), 0)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, np.log(total) + np.where(np.isfinite(top), top, 0), -np.inf)[..., 0]
    weights = weights / np.where(total > 0, total, 1)
    return weights @ v, lse, weights @ abs(v)


@st.composite
def problems(draw):
    if draw(st.booleans()):
        mask, make = draw(masks(140)), splat.mask_from_array
    else:
        expression, q_len, kv_len = draw(expressions), draw(st.integers(1, 140)), draw(st.integers(1, 140))
        mask = expression.array(q_len, kv_len, kv_len - q_len).copy()
        make = lambda array: splat.mask_from_expression(expression.text, *array.shape)
    dtype = draw(st.sampled_from([splat.FP32, splat.FP16, splat.BF16]))
    kv_heads, group, batch = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2, 3, 5])), draw(st.integers(1, 2))
    head_dim, value_dim = (8 * draw(st.integers(1, 12)) for _ in range(2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.01, 1.0, 6.0]))

    def tensor(heads, rows, dim, size):
        if draw(st.booleans()):
            return ENCODE[dtype](rng.standard_normal((batch, heads, rows, dim)) * size)
        return ENCODE[dtype](rng.standard_normal((batch, rows, heads, dim)) * size).transpose(0, 2, 1, 3)

    q = tensor(kv_heads * group, mask.shape[0], head_dim, spread)
    k = tensor(kv_heads, mask.shape[1], head_dim, 1.0)
    v = tensor(kv_heads, mask.shape[1], value_dim, 1.0)
    scale = draw(st.sampled_from([0.0, 0.125, 1.0]))
    return mask, make, dtype, q, k, v, scale


@pytest.fixture(scope="module")
def ctx():
    return splat.context()


@examples(120)
@given(problem=problems())
def test_attention_is_the_reference(ctx, problem):
    mask, make, dtype, q, k, v, scale = problem
    o, lse = splat.attention(ctx, make(mask), q, k, v, dtype, scale)
    q, k, v, o = (DECODE[dtype](x).astype(np.float64) for x in (q, k, v, o))
    factor = scale or 1 / np.sqrt(q.shape[3])
    want, want_lse, reach = reference(q, k, v, mask, factor)
    # fp32 sums of the products of a score are off by a few ulp of the sum of their magnitudes: a weight by that much, too
    score_error = 2e-7 * factor * np.abs(q).max(initial=0) * np.abs(k).sum(axis=3).max(initial=0) + 1e-5
    ulp = ULP[dtype]
    empty = ~mask.any(axis=1)
    assert np.all(o[:, :, empty] == 0) and np.all(lse[:, :, empty] == -np.inf)
    assert not np.isnan(o).any() and not np.isnan(lse).any()
    weight_error = score_error + (0 if dtype == splat.FP32 else 2 * ulp)
    assert np.all(np.abs(o - want) <= 2 * weight_error * reach + ulp * np.abs(want) + 1e-7)
    alive = ~empty
    assert np.all(np.abs(lse[:, :, alive] - want_lse[:, :, alive]) <= score_error + 1e-6 * np.abs(want_lse[:, :, alive]))


@examples(40)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_keys_that_nobody_sees_may_hold_anything(ctx, problem, seed):
    mask, _, dtype, q, k, v, scale = problem
    mask = mask.copy()
    hidden = np.random.default_rng(seed).random(mask.shape[1]) < 0.3
    mask[:, hidden] = False
    handle = splat.mask_from_array(mask)
    before = [x.copy() for x in splat.attention(ctx, handle, q, k, v, dtype, scale)]
    poison = ENCODE[dtype](np.array([np.nan, np.inf, -np.inf]))
    k[:, :, hidden] = poison[0]
    v[:, :, hidden] = poison[1 + seed % 2]
    after = splat.attention(ctx, handle, q, k, v, dtype, scale)
    for x, y in zip(before, after):
        assert x.tobytes() == np.ascontiguousarray(y).tobytes() or np.array_equal(x, y)


@examples(30)
@given(problem=problems())
def test_expression_bytes_and_threads_give_the_same_bits(ctx, problem):
    mask, make, dtype, q, k, v, scale = problem
    a = splat.attention(ctx, make(mask), q, k, v, dtype, scale)
    b = splat.attention(splat.context(threads=1), splat.mask_from_array(mask), q, k, v, dtype, scale)
    for x, y in zip(a, b):
        assert np.array_equal(x, y)
