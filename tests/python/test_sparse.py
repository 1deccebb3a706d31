"""splat.sddmm, sparse_softmax and spmm on NumPy arrays."""

import ml_dtypes
import numpy as np
import pytest
import splat

TYPES = {np.float32: 2e-5, np.float16: 4e-3, ml_dtypes.bfloat16: 3e-2}


def inputs(dtype, heads=4, kv_heads=2, q_len=70, kv_len=90, dim=24):
    rng = np.random.default_rng(3)
    q = rng.standard_normal((2, heads, q_len, dim)).astype(dtype)
    k = rng.standard_normal((2, kv_heads, kv_len, dim)).astype(dtype)
    return q, k


def wide(x):
    return x.astype(np.float64)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("text", ["causal & (window(20, 0) | strided(7))", "full - full", "window(5)", "rows(3, 9)"])
def test_chain_is_attention(dtype, text):
    q, k = inputs(dtype)
    mask = splat.pattern(text, 70, 90)
    allowed, tolerance = mask.to_dense(), TYPES[dtype]
    values = splat.sddmm(q, k, text)
    assert values.dtype == q.dtype and values.shape == (2, 4, mask.pairs)
    scores = wide(q) @ np.repeat(wide(k), 2, 1).transpose(0, 1, 3, 2) / np.sqrt(24)
    np.testing.assert_allclose(wide(values), scores[:, :, allowed], atol=tolerance)
    weights, lse = splat.sparse_softmax(values, mask, return_lse=True)
    o, attention_lse = splat.attention(q, k, k, mask, return_lse=True)
    np.testing.assert_allclose(lse, attention_lse, atol=4 * tolerance)
    np.testing.assert_allclose(wide(splat.spmm(weights, k, mask)), wide(o), atol=4 * tolerance)
    dense = np.zeros((2, 4, 70, 90))
    dense[:, :, allowed] = wide(weights)
    np.testing.assert_allclose(wide(splat.spmm(weights, q, mask, transposed=True)), dense.transpose(0, 1, 3, 2) @ wide(q),
                               atol=4 * tolerance)


def test_values_are_those_of_csr():
    mask = splat.pattern("causal & (window(20, 0) | strided(7))", 70, 90)
    indptr, indices = mask.to_csr()
    rows, columns = np.nonzero(mask.to_dense())
    assert np.array_equal(indices, columns) and np.array_equal(indptr, mask.row_offsets())
    assert np.array_equal(np.repeat(np.arange(70), np.diff(indptr)), rows)
    assert splat.from_csr(indptr, indices, 90).same_pairs(mask)
    assert np.array_equal(mask.transposed().to_dense(), mask.to_dense().T)
    assert mask.transposed().transposed().same_pairs(mask)


def test_maps_pad_the_shorter_masks():
    q, k = inputs(np.float32, heads=2, kv_heads=1, kv_len=70)
    mask = splat.per_head([splat.window(3, q_len=70), splat.causal(q_len=70)])
    values = splat.sddmm(q, k, mask)
    few = splat.window(3, q_len=70).pairs
    assert values.shape == (2, 2, 70 * 71 // 2) and not values[:, 0, few:].any()
    np.testing.assert_array_equal(values[:, :1, :few], splat.sddmm(q[:, :1], k, splat.window(3)))
    y = splat.spmm(values, k, mask)
    np.testing.assert_array_equal(y[:, 1:], splat.spmm(values[:, 1:], k, splat.causal(q_len=70)))


def test_nan_stays_where_no_pair_is():
    x = np.random.default_rng(0).standard_normal((1, 1, 70, 8)).astype(np.float32)
    x[:, :, 50:] = np.nan
    mask = splat.pattern("full - cols(50, 70)", 70)
    values = splat.sddmm(np.ones_like(x), x, mask)
    assert np.isfinite(values).all() and np.isfinite(splat.spmm(values, x, mask)).all()


def test_refusals():
    q, k = inputs(np.float32)
    mask = splat.causal(q_len=70, kv_len=90)
    values = splat.sddmm(q, k, mask)
    for call, words in [
        (lambda: splat.sddmm(q, k.astype(np.float16), mask), "float32 in q and float16 in k"),
        (lambda: splat.sddmm(q[0], k, mask), r"q has shape \(4, 70, 24\)"),
        (lambda: splat.sddmm(q, k, mask, scale=-1.0), "scale is -1"),
        (lambda: splat.sparse_softmax(values[..., :-1], mask), "values has shape"),
        (lambda: splat.sparse_softmax(values, splat.causal()), "mask has no lengths"),
        (lambda: splat.spmm(values, k[:, :, :-1], mask), "x has shape"),
        (lambda: splat.spmm(values, k, mask, transposed=True), "x has shape"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
