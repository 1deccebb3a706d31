"""The operators on values, random masks and inputs, on the CPU device against NumPy in float64."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import splat_bindings as splat
from patterns import expressions, masks
from test_attention_properties import DECODE, ENCODE, ULP


@st.composite
def problems(draw):
    if draw(st.booleans()):
        mask, make = draw(masks(120)), splat.mask_from_array
    else:
        expression, q_len, kv_len = draw(expressions), draw(st.integers(1, 120)), draw(st.integers(1, 120))
        mask = expression.array(q_len, kv_len, kv_len - q_len).copy()
        make = lambda array: splat.mask_from_expression(expression.text, *array.shape)
    dtype = draw(st.sampled_from([splat.FP32, splat.FP16, splat.BF16]))
    kv_heads, group, batch, dim = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3])), draw(st.integers(1, 2)), 8 * draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tensor = lambda heads, rows: ENCODE[dtype](rng.standard_normal((batch, rows, heads, dim))).transpose(0, 2, 1, 3)
    q, k = tensor(kv_heads * group, mask.shape[0]), tensor(kv_heads, mask.shape[1])
    values = ENCODE[dtype](rng.standard_normal((batch, kv_heads * group, int(mask.sum()) + draw(st.integers(0, 9)))))
    return mask, make(mask), dtype, q, k, values


@pytest.fixture(scope="module")
def ctx():
    return splat.context()


def close(got, want, reach, dtype):
    assert np.all(np.abs(got - want) <= ULP[dtype] * np.abs(want) + 4e-6 * reach + 1e-7)


@settings(max_examples=60)
@given(problem=problems())
def test_sddmm_is_the_reference(ctx, problem):
    mask, handle, dtype, q, k, values = problem
    out = np.full_like(values, ENCODE[dtype](np.array([np.nan]))[0])
    k[:, :, 0, 0] = ENCODE[dtype](np.array([np.nan]))[0]
    splat.operator(ctx, "sddmm", handle, out.shape, mask.shape, dtype, k.shape[1], q=q, k=k, values=out)
    wide_q, wide_k = (DECODE[dtype](x).astype(np.float64) for x in (q, np.repeat(k, q.shape[1] // k.shape[1], 1)))
    want = (wide_q @ wide_k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[3]))[:, :, mask]
    reach = (abs(wide_q) @ abs(wide_k).transpose(0, 1, 3, 2))[:, :, mask]
    got, pairs = DECODE[dtype](out).astype(np.float64), int(mask.sum())
    assert np.isnan(got[:, :, pairs:]).all() and np.array_equal(np.isnan(got[:, :, :pairs]), np.isnan(want))
    close(*(np.nan_to_num(x) for x in (got[:, :, :pairs], want, reach)), dtype)


@settings(max_examples=60)
@given(problem=problems(), scale=st.sampled_from([0.0, 0.3, 4.0]))
def test_softmax_is_the_reference(ctx, problem, scale):
    mask, handle, dtype, _, _, scores = problem
    out, lse = scores.copy(), np.empty((*scores.shape[:2], mask.shape[0]), np.float32)
    splat.operator(ctx, "softmax", handle, out.shape, mask.shape, dtype, 0, scale, scores=scores, values=out, lse=lse)
    dense, pairs = np.full((*scores.shape[:2], *mask.shape), -np.inf), int(mask.sum())
    dense[:, :, mask] = DECODE[dtype](scores).astype(np.float64)[:, :, :pairs] * (scale or 1)
    top = dense.max(3, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    sums = np.exp(dense - top).sum(3, keepdims=True)
    with np.errstate(divide="ignore"):
        want_lse = np.log(sums) + top
    assert np.array_equal(np.isinf(lse), np.isinf(want_lse[..., 0])) and np.allclose(lse, want_lse[..., 0], atol=1e-5, rtol=1e-6)
    want = (np.exp(dense - top) / np.where(sums > 0, sums, 1))[:, :, mask]
    close(DECODE[dtype](out).astype(np.float64)[:, :, :pairs], want, 4 * (1 + abs(dense[:, :, mask])) * want, dtype)
    in_place = scores.copy()
    splat.operator(ctx, "softmax", handle, out.shape, mask.shape, dtype, 0, scale, scores=in_place, values=in_place)
    assert in_place[:, :, :pairs].tobytes() == out[:, :, :pairs].tobytes()


@settings(max_examples=60)
@given(problem=problems())
def test_products_are_the_reference(ctx, problem):
    mask, handle, dtype, q, k, values = problem
    pairs, group = int(mask.sum()), q.shape[1] // k.shape[1]
    dense = np.zeros((*values.shape[:2], *mask.shape))
    dense[:, :, mask] = DECODE[dtype](values).astype(np.float64)[:, :, :pairs]
    y, z = np.empty(q.shape, q.dtype), np.empty((*q.shape[:2], *k.shape[2:]), q.dtype)
    # Rows of x that no pair reaches may hold anything.
    k[:, :, ~mask.any(0)] = ENCODE[dtype](np.array([np.nan]))[0]
    q[:, :, ~mask.any(1)] = ENCODE[dtype](np.array([np.inf]))[0]
    splat.operator(ctx, "spmm", handle, values.shape, mask.shape, dtype, k.shape[1], values=values, x=k, y=y)
    splat.operator(ctx, "spmm_transposed", handle, values.shape, mask.shape, dtype, 0, values=values, x=q, y=z)
    for got, matrix, x in ((y, dense, np.repeat(k, group, 1)), (z, dense.transpose(0, 1, 3, 2), q)):
        x = np.nan_to_num(DECODE[dtype](x).astype(np.float64), nan=0, posinf=0, neginf=0)
        close(DECODE[dtype](got).astype(np.float64), matrix @ x, abs(matrix) @ abs(x), dtype)


@settings(max_examples=20)
@given(problem=problems())
def test_the_number_of_threads_does_not_show(ctx, problem):
    mask, handle, dtype, q, k, values = problem
    results = []
    for context in (ctx, splat.context(threads=1)):
        y = np.empty(q.shape, q.dtype)
        splat.operator(context, "spmm", handle, values.shape, mask.shape, dtype, k.shape[1], values=values, x=k, y=y)
        results.append(y.tobytes())
    assert results[0] == results[1]
