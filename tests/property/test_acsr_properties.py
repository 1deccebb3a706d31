"""ACSR against NumPy: random expressions and random arrays, through the public API."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

import splat_bindings as splat
from patterns import examples, expressions, lengths, masks


@examples(200)
@given(expressions, lengths, lengths, st.sampled_from([splat.BOTTOM_RIGHT, splat.TOP_LEFT]))
def test_expression_expands_to_its_formula(expression, q_len, kv_len, align):
    want = expression.array(q_len, kv_len, kv_len - q_len if align == splat.BOTTOM_RIGHT else 0)
    a = splat.acsr(splat.mask_from_expression(expression.text, q_len, kv_len, align))
    assert np.array_equal(splat.expand(a), want)
    assert splat.lib.splat_acsr_pairs(a.pointer) == want.sum()
    assert splat.equal(a, splat.acsr(splat.mask_from_array(want.copy())))


@examples(100)
@given(masks())
def test_every_array_survives(mask):
    a = splat.acsr(splat.mask_from_array(mask))
    assert np.array_equal(splat.expand(a), mask)
    assert splat.equal(a, splat.acsr(splat.mask_from_bits(mask)))
    assert splat.equal(a, splat.acsr(splat.mask_from_csr(mask)))


@examples(50)
@given(masks(), st.integers(0, 50))
def test_row_stride_is_honoured(mask, gap):
    wide = np.ones((mask.shape[0], mask.shape[1] + gap), bool)
    wide[:, : mask.shape[1]] = mask
    assert np.array_equal(splat.expand(splat.acsr(splat.mask_from_array(wide[:, : mask.shape[1]]))), mask)


@examples(60)
@given(masks(90))
def test_runs_are_ordered_disjoint_and_maximal(mask):
    for i, runs in enumerate(splat.rows(splat.acsr(splat.mask_from_array(mask)))):
        columns, reached = np.zeros(mask.shape[1], int), -1
        for start, stride, count, width in runs:
            assert count >= 1 and width >= 1 and count != 2, "two blocks do not make a progression"
            assert (stride == 0) == (count == 1)
            assert stride == 0 or stride > width, "touching blocks are one block"
            assert start > reached, "runs ascend and do not touch"
            for k in range(count):
                columns[start + k * stride : start + k * stride + width] += 1
            reached = start + (count - 1) * stride + width
        assert np.array_equal(columns, mask[i].astype(int))


@examples(80)
@given(st.data())
def test_set_algebra_is_numpy_algebra(data):
    a = data.draw(masks(80))
    b = data.draw(masks(80))
    shape = np.minimum(a.shape, b.shape)
    a, b = (np.ascontiguousarray(x[: shape[0], : shape[1]]) for x in (a, b))
    x, y = (splat.acsr(splat.mask_from_array(m)) for m in (a, b))
    assert np.array_equal(splat.expand(splat.combine(x, splat.UNION, y)), a | b)
    assert np.array_equal(splat.expand(splat.combine(x, splat.INTERSECTION, y)), a & b)
    assert np.array_equal(splat.expand(splat.combine(x, splat.DIFFERENCE, y)), a & ~b)
    assert np.array_equal(splat.expand(splat.complement(x)), ~a)
    de_morgan = splat.combine(splat.complement(x), splat.INTERSECTION, splat.complement(y))
    assert splat.equal(splat.complement(splat.combine(x, splat.UNION, y)), de_morgan)
    assert splat.equal(x, splat.complement(splat.complement(x)))


@examples(150)
@given(st.text(alphabet="causlwindoxrte()~&|-,;= 0123456789_", max_size=40))
def test_any_text_parses_or_says_where_not(text):
    try:
        splat.mask_from_expression(text, 16, 16)
    except splat.SplatError as error:
        assert "column" in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("bad", ["windw(3)", "window(3", "window(-1)", "full full", ""])
def test_refusals_leave_no_mask(bad):
    with pytest.raises(splat.SplatError, match="column"):
        splat.mask_from_expression(bad, 16, 16)
