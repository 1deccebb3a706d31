"""Patterns: constructors, algebra, data, and what they tell about themselves."""

import copy
import pickle
import re
import struct
import zlib

import numpy as np
import pytest
import scipy.sparse
import splat
from hypothesis import given, settings, strategies as st
from patterns import expressions, masks
from splat import _pattern


def pairs(q_len, kv_len):
    return np.arange(q_len)[:, None], np.arange(kv_len)[None, :]


def power_of_two(x):
    return (x > 0) & ((x & (x - 1)) == 0)


def neighbours(n, k, at):
    """Whether position j of an axis is among the keys of position i: the table [n, n]."""
    i, j = pairs(n, n)
    k = min(k, n)
    start = np.clip(i - k // 2, 0, n - k)
    return ((j >= start) & (j < start + k))[at]


# Each constructor with arguments, and its formula written anew.
PRIMITIVES = {
    "full": (splat.full(), lambda i, j, off: (i == i) & (j == j)),
    "causal": (splat.causal(), lambda i, j, off: j <= i + off),
    "window": (splat.window(5, 2), lambda i, j, off: (-5 <= j - i - off) & (j - i - off <= 2)),
    "dilated": (splat.dilated(3, 4), lambda i, j, off: (abs(i - j) <= 12) & ((i - j) % 4 == 0)),
    "strided": (splat.strided(7), lambda i, j, off: (i - j) % 7 == 0),
    "blocks": (splat.blocks(9), lambda i, j, off: i // 9 == j // 9),
    "banded_blocks": (splat.banded_blocks(8, 2, 1), lambda i, j, off: (-2 <= j // 8 - i // 8) & (j // 8 - i // 8 <= 1)),
    "rows": (splat.rows(3, 11), lambda i, j, off: (3 <= i) & (i < 11) & (j == j)),
    "cols": (splat.cols(3, 11), lambda i, j, off: (3 <= j) & (j < 11) & (i == i)),
    "comb": (splat.comb(10, 3), lambda i, j, off: (j % 10 >= 7) & (i == i)),
    "grid": (
        splat.grid(8, 3, 5),
        lambda i, j, off: neighbours(8, 5, (i % 8, j % 8)) & neighbours(8, 3, (i // 8, j // 8)),
    ),
    "swin": (splat.swin(8, 4, 0), lambda i, j, off: (i // 32 == j // 32) & (i % 8 // 4 == j % 8 // 4)),
    "axial": (splat.axial(8), lambda i, j, off: (i // 8 == j // 8) | (i % 8 == j % 8)),
    "documents": (
        splat.documents(10, 20, 34),
        lambda i, j, off: np.searchsorted([10, 30], i, "right") == np.searchsorted([10, 30], j, "right"),
    ),
    "random_blocks": (splat.random_blocks(8, 2, 5), None),
    "diagonals": (splat.diagonals(-3, 0, 8), lambda i, j, off: np.isin(i - j, [-3, 0, 8])),
    "logsparse": (splat.logsparse(), lambda i, j, off: (i == j) | power_of_two(i - j)),
    "butterfly": (splat.butterfly(8), lambda i, j, off: (i // 8 == j // 8) | power_of_two((i // 8) ^ (j // 8))),
    "checkerboard": (splat.checkerboard(3), lambda i, j, off: (i // 3 + j // 3) % 2 == 0),
}  # fmt: skip


def test_every_primitive_of_the_library_has_a_constructor_and_a_test():
    for name in _pattern.mapping_of_primitives():
        assert hasattr(splat, name) and name in splat.__all__, f"python/splat/_primitives.py has no {name}"
        assert name in PRIMITIVES or name == "kron", f"no formula of {name} here"
        assert getattr(splat, name).__doc__


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_constructor_is_its_formula(name):
    made, formula = PRIMITIVES[name]
    assert not made.bound and name in made.text
    for q_len, kv_len in [(64, 64), (40, 64)]:
        dense = made.at(q_len, kv_len).to_dense()
        assert dense.shape == (q_len, kv_len) and dense.dtype == np.bool_
        if formula is None:  # two block columns for each block row
            columns = dense.reshape(q_len // 8, 8, kv_len // 8, 8)
            assert (columns.any((1, 3)) == columns.all((1, 3))).all() and (columns.all((1, 3)).sum(1) == 2).all()
        else:
            want = np.broadcast_to(formula(*pairs(q_len, kv_len), kv_len - q_len), dense.shape)
            assert np.array_equal(dense, want)


def test_kron_is_a_kronecker_product():
    made = splat.kron(2, 3, 5, 4)
    assert (made.q_len, made.kv_len) == (24, 40)
    assert np.array_equal(made.to_dense(), np.kron(np.kron(np.eye(2), np.ones((3, 5))), np.eye(4)).astype(bool))


def test_grid_in_three_dimensions_and_named_arguments():
    assert splat.grid((2, 4, 8), 1, 3, 3).text == "grid(2, 4, 8; 1, 3, 3)"
    assert splat.grid((2, 4, 8), 1, 3, 3, q_len=64).density > 0
    assert splat.grid(8, 3, dilation=2, stride=2, q_len=64).pairs > 0


def test_alignment():
    i, j = pairs(5, 9)
    assert np.array_equal(splat.causal(q_len=5, kv_len=9).to_dense(), j <= i + 4)
    assert np.array_equal(splat.causal(q_len=5, kv_len=9, align="top_left").to_dense(), j <= i)
    both = splat.causal(q_len=5, kv_len=9) - splat.causal(q_len=5, kv_len=9, align="top_left")
    assert np.array_equal(both.to_dense(), (j <= i + 4) & (j > i))


@settings(max_examples=60)
@given(a=expressions, b=expressions, q_len=st.integers(1, 70), kv_len=st.integers(1, 70), bind=st.sampled_from("ab-"))
def test_operators_on_expressions(a, b, q_len, kv_len, bind):
    p, q = splat.pattern(a.text), splat.pattern(b.text)
    p, q = (p.at(q_len, kv_len) if bind == "a" else p), (q.at(q_len, kv_len) if bind == "b" else q)
    x, y = (e.array(q_len, kv_len, kv_len - q_len) for e in (a, b))
    for made, want in [(p & q, x & y), (p | q, x | y), (p - q, x & ~y), (~p, ~x), (~(p | q) & p, ~(x | y) & x)]:
        assert made.text is not None  # stays an expression: serves any length
        assert np.array_equal(made.at(q_len, kv_len).to_dense(), want)


@settings(max_examples=40)
@given(array=masks(70), expression=expressions)
def test_operators_on_data(array, expression):
    q_len, kv_len = array.shape
    p, q = splat.from_dense(array), splat.pattern(expression.text)
    other = expression.array(q_len, kv_len, kv_len - q_len)
    assert np.array_equal((p & q).to_dense(), array & other)
    assert np.array_equal((q | p).to_dense(), array | other)
    assert np.array_equal((p - q).to_dense(), array & ~other)
    assert np.array_equal((q - p).to_dense(), other & ~array)
    assert np.array_equal((~p).to_dense(), ~array)


@settings(max_examples=40)
@given(array=masks(90))
def test_all_kinds_of_data_give_the_same_pairs(array):
    q_len, kv_len = array.shape
    made = splat.from_dense(array)
    same = [
        splat.from_dense(array.astype(np.int32) * 3),
        splat.from_dense(np.asfortranarray(array)),
        splat.from_blocks(array, 1),
        splat.from_csr(scipy.sparse.csr_array(array)),
        splat.from_csr(scipy.sparse.coo_matrix(array)),
        splat.from_csr(np.concatenate([[0], np.cumsum(array.sum(1))]), np.nonzero(array)[1], kv_len=kv_len),
        splat.from_function(lambda i, j: array[i, j], q_len, kv_len),
    ]
    assert np.array_equal(made.to_dense(), array)
    assert made.pairs == array.sum() and made.density == array.mean()
    for other in same:
        assert made.same_pairs(other) and np.array_equal(other.to_dense(), array)
    for i in range(q_len):
        columns = [s + n * d + w for s, d, count, width in made.row(i) for n in range(count) for w in range(width)]
        assert columns == np.nonzero(array[i])[0].tolist()


def test_blocks_need_not_be_whole():
    blocks = np.array([[1, 0, 1], [0, 1, 1]], np.uint8)
    i, j = pairs(7, 10)
    made = splat.from_blocks(blocks, (4, 4), 7, 10)
    assert np.array_equal(made.to_dense(), blocks[i // 4, j // 4] != 0)
    assert splat.from_blocks(blocks, 4).to_dense().shape == (8, 12)


def test_a_stored_zero_of_a_sparse_matrix_is_not_allowed():
    matrix = scipy.sparse.csr_matrix(([1.0, 0.0, 2.0, -2.0], ([0, 0, 1, 1], [1, 2, 0, 0])), shape=(2, 4))
    assert splat.from_csr(matrix).to_dense().tolist() == [[False, True, False, False], [False] * 4]
    assert matrix.nnz in (3, 4) and 0.0 in matrix.data  # the caller's matrix is as it was


def test_a_function_sees_int64_indices_and_may_broadcast():
    seen = []

    def even(i, j):
        seen.append((i.dtype, j.dtype, i.shape[1], j.shape[0]))
        return i % 2 == 0

    assert np.array_equal(splat.from_function(even, 5, 3).to_dense(), np.repeat([[True], [False]] * 2 + [[True]], 3, 1))
    assert set(seen) == {(np.dtype(np.int64), np.dtype(np.int64), 1, 1)}
    long = splat.from_function(lambda i, j: abs(i - j) < 3, 3000)  # more than one band of rows
    assert long.same_pairs(splat.window(2, q_len=3000))


def test_maps():
    heads = splat.per_head([splat.causal(), splat.window(3), ~splat.causal()])
    assert (heads.map_batch, heads.map_heads) == (1, 3) and not heads.bound
    bound = heads.at(9, 12)
    assert bound.to_dense().shape == (1, 3, 9, 12)
    assert np.array_equal(bound.to_dense()[0, 1], splat.window(3, q_len=9, kv_len=12).to_dense())
    assert bound.density == pytest.approx(bound.to_dense().mean())
    stack = np.random.default_rng(0).random((2, 3, 9, 12)) < 0.5
    made = splat.from_dense(stack)
    assert np.array_equal(made.to_dense(), stack) and made.explain().masks == 6
    assert np.array_equal(made.tiled(2).to_dense(), np.concatenate([stack, stack]))
    with pytest.raises(ValueError, match="rows of one length"):
        splat.pattern_map([[splat.causal()], []])
    with pytest.raises(ValueError, match="entry 1"):
        splat.per_head([splat.causal(), np.eye(3)])
    with pytest.raises(ValueError, match=r"masks\[1\] is 4 x 4"):
        splat.per_head([splat.full(q_len=3), splat.full(q_len=4)])


def test_equality_is_of_text_or_data():
    assert splat.causal() == splat.pattern("causal") and hash(splat.causal()) == hash(splat.pattern("causal"))
    assert splat.causal() != splat.causal(q_len=4) and splat.causal() != splat.causal(align="top_left")
    eye = np.eye(6, dtype=bool)
    assert splat.from_dense(eye) == splat.from_dense(eye) and splat.from_dense(eye) != splat.from_dense(~eye)
    assert splat.from_dense(eye) != splat.diagonals(0, q_len=6)
    assert splat.from_dense(eye).same_pairs(splat.diagonals(0, q_len=6))
    # The same bytes in another shape are other data.
    assert splat.from_dense(np.ones((2, 8), bool)).key != splat.from_dense(np.ones((4, 4), bool)).key
    assert splat.from_dense(np.ones((1, 7), bool)).key != splat.from_dense(np.ones((1, 8), bool)).key


def test_a_key_leads_back_to_its_mask():
    made = splat.from_dense(np.eye(6, dtype=bool))
    assert _pattern.by_key(made.key) is made
    again = _pattern.by_key(splat.causal(align="top_left").key)
    assert again == splat.causal(align="top_left")
    key = (made | splat.cols(0, 1)).key  # nobody holds it
    with pytest.raises(RuntimeError, match="not known in this process"):
        _pattern.by_key(key)


def test_repr_and_explain():
    made = splat.causal() & (splat.window(5) | splat.cols(0, 2))
    assert repr(made) == "splat.Pattern('causal & (window(5, 5) | cols(0, 2))')"
    assert repr(made.at(64)) == "splat.Pattern('causal & (window(5, 5) | cols(0, 2))', 64 x 64)"
    assert "top_left" in repr(splat.causal(align="top_left"))
    assert repr(splat.per_head([made])) == "splat.PatternMap(1 x 1 entries)"
    plan = made.at(4096).explain(head_dim=128, heads=8, dtype="float16")
    assert plan.allowed_pairs == made.at(4096).pairs and plan.density == pytest.approx(made.at(4096).density)
    assert plan.candidates and plan.candidates[0].reason == "chosen"
    assert plan.predicted_us == pytest.approx(plan.candidates[0].predicted_us)
    assert [c.predicted_us for c in plan.candidates] == sorted(c.predicted_us for c in plan.candidates)
    text = str(plan)
    assert "4096 x 4096" in text and "chosen" in text and f"{plan.full_tiles} full" in text
    forced = made.at(4096).explain(tile=(64, 64))
    assert (forced.tile_rows, forced.tile_cols) == (64, 64)


def test_cuda_source():
    busy = {"head_dim": 64, "heads": 512, "arch": "sm_80"}  # so many heads that no row tile is split
    source = splat.causal(q_len=512).cuda_source(**busy)
    assert "__global__" in source and source == splat.causal(q_len=2048).cuda_source(**busy)
    with pytest.raises(ValueError, match="arch is 'sm_70'"):
        splat.causal(q_len=512).cuda_source(arch="sm_70")
    with pytest.raises(ValueError, match="head_dim is 7"):
        splat.causal(q_len=512).cuda_source(head_dim=7)


def png_pixels(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        chunks[kind] = body
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def test_pictures():
    made = splat.causal(q_len=100, kv_len=60)
    assert np.array_equal(made.picture(), made.to_dense())
    pixels = png_pixels(made._repr_png_())
    scale = pixels.shape[0] // 100
    assert pixels.shape == (100 * scale, 60 * scale, 3)
    assert np.array_equal((pixels != 255).any(2)[::scale, ::scale], made.to_dense())
    long = splat.window(64, q_len=5000).picture(50)
    assert long.shape == (50, 50) and long[10, 10] > 0.5 and long[0, 49] == 0
    dense = splat.strided(2, q_len=512).picture(8)
    assert np.allclose(dense, 0.5)
    assert splat.causal()._repr_png_() is None


def test_plot_draws_or_says_what_is_missing():
    try:
        import matplotlib
    except ImportError:
        with pytest.raises(ImportError, match="matplotlib"):
            splat.causal(q_len=10).plot()
        return
    matplotlib.use("Agg")
    axes = splat.causal(q_len=10).plot()
    assert np.array_equal(axes.images[0].get_array(), splat.causal(q_len=10).to_dense())


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: splat.pattern("windw(3)", 64), "column 1: found 'windw'.*nearest is 'window'"),
        (lambda: splat.pattern("causal", 0), "q_len is 0; it must be from 1"),
        (lambda: splat.pattern("causal", 5, -1), "kv_len is -1"),
        (lambda: splat.pattern("causal", kv_len=5), "kv_len is given without q_len"),
        (lambda: splat.pattern(7), "expression is int"),
        (lambda: splat.pattern("causal", 5, align="middle"), "align is 'middle'"),
        (lambda: splat.causal().density, "no lengths yet"),
        (lambda: splat.causal().to_dense(), "no lengths yet"),
        (lambda: splat.causal(q_len=5).at(6), "the mask is 5 x 5; q_len x kv_len is 6 x 6"),
        (lambda: splat.documents(3, 4, q_len=8), "documents"),
        (lambda: splat.full(q_len=4) & splat.from_dense(np.ones((5, 5), bool)), "4"),
        (lambda: splat.causal() & splat.causal(align="top_left"), "different alignments"),
        (lambda: splat.from_dense(np.ones(4, bool)), "array has 1 axis;"),
        (lambda: splat.from_dense(np.ones((4, 4))), "dtype float64; it must be bool"),
        (lambda: splat.from_dense(np.ones((0, 4), bool)), "q_len is 0"),
        (lambda: splat.from_blocks(np.ones((2, 2), bool), 4, 9), "it must be 3 x 2"),
        (lambda: splat.from_blocks(np.ones((2, 2), bool), 0), "block_rows is 0|q_len is 0"),
        (lambda: splat.from_csr(np.eye(3)), "SciPy sparse array"),
        (lambda: splat.from_csr([0, 1], [5], kv_len=5), "5"),
        (lambda: splat.from_csr([0, 2, 1], [0], kv_len=5), "it must rise from 0 to 1"),
        (lambda: splat.from_csr([0, 1], [0]), "kv_len is missing"),
        (lambda: splat.from_function(lambda i, j: i + j, 4), "returned dtype int64; it must be bool"),
        (lambda: splat.from_function(lambda i, j: np.ones(3, bool), 4), r"returned shape \(3,\)"),
        (lambda: splat.from_function(lambda i, j: i == j, 0), "q_len is 0"),
        (lambda: splat.causal(q_len=9).explain(dtype="float8"), "dtype is 'float8'; it must be one of"),
        (lambda: splat.causal(q_len=9).row(9), "9"),
        (lambda: splat.causal(q_len=9).row(-1), "-1"),
    ],
)
def test_what_is_wrong_raises_value_error_with_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        made = make()
        made.to_dense()


def test_other_operands_are_no_patterns():
    with pytest.raises(TypeError):
        splat.causal() & np.eye(3, dtype=bool)
    with pytest.raises(TypeError):
        splat.causal() | "causal"
    assert splat.causal() != "causal"


def test_expressions_are_pickled_and_copied():
    for made in (splat.pattern("causal & window(3)"), splat.pattern("strided(4)", 12, 9, align="top_left")):
        again = pickle.loads(pickle.dumps(made))
        assert (again.text, again.q_len, again.kv_len, again.align) == (made.text, made.q_len, made.kv_len, made.align)
        assert copy.deepcopy({"mask": made})["mask"] is made
    assert np.array_equal(again.to_dense(), made.to_dense())


def test_masks_made_from_data_are_copied_but_not_pickled():
    made = splat.from_dense(np.eye(4, dtype=bool))
    assert copy.copy(made) is made
    with pytest.raises(TypeError, match="made from data"):
        pickle.dumps(made)


def test_a_map_takes_texts():
    mixed = splat.per_head(["causal", splat.window(3)])
    assert np.array_equal(splat.attention(*heads_of(mixed)), splat.attention(*heads_of(splat.per_head([splat.causal(), "window(3)"]))))


def heads_of(mask):
    q, k, v = (np.random.default_rng(n).standard_normal((1, 2, 9, 8), np.float32) for n in range(3))
    return q, k, v, mask


def test_the_help_lists_every_primitive():
    text = splat.pattern_help()
    assert all(re.search(rf"^{name}\b", text, re.M) for name in PRIMITIVES)


def test_wrong_inputs_name_what_takes_them():
    with pytest.raises(ValueError, match="from_csr"):
        splat.from_dense(scipy.sparse.csr_array(np.eye(3)))
    with pytest.raises(ValueError, match="argument 1 is list"):
        splat.documents([3, 5])
    q = np.zeros((1, 1, 4, 8), np.float32)
    for scale in (-1.0, 0.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="None for 1 / sqrt"):
            splat.attention(q, q, q, "causal", scale=scale)
