"""What is compared: settings, what they cost at least, and the suite's definitions without torch."""

import numpy as np
import pytest
from stand_in import kron, sddmm

import splat_ctypes
import suite
from compare import problems, registry


def test_counts_of_a_kron_layer_by_brute_force():
    a, b, c, d, n = 2, 3, 4, 5, 7
    w = np.zeros((a * b * d, a * c * d))
    for i in range(a):
        for j in range(d):
            for k in range(b):
                for l in range(c):
                    w[i * b * d + k * d + j, i * c * d + l * d + j] = 1
    for op in ("forward", "grad_input", "grad_weight"):
        p = problems.Problem(kron(n, "2,3,4,5", "fp32", op=op))
        assert p.flops() == 2 * n * w.sum()
        assert p.bytes() == 4 * (n * (w.shape[0] + w.shape[1]) + w.sum())


@pytest.mark.parametrize("shape, dtype, floor", [("1,64,64,64", "fp16", 0.097), ("4,64,64,16", "fp16", 0.097),
                                                 ("16,64,64,4", "fp32", 0.193), ("64,64,64,1", "fp16", 0.097)])
def test_byte_floors_as_published(shape, dtype, floor):
    """Of the layers with 25088 rows at the copy rate of an H200, 4.26 TB/s."""
    rates = {"matmul_flops": {dtype: 1e18}, "copy_bytes": 4.26e12}
    ms, bound = problems.Problem(kron(25088, shape, dtype)).floor(rates)
    assert bound == "memory" and ms == pytest.approx(floor, abs=0.0006)


def test_floor_is_the_larger_of_the_two():
    p = problems.Problem(sddmm(), pairs=1000)
    assert p.flops() == 2 * 2 * 1000 * 64 and p.bytes() == 2 * (2 * 2 * 1024 * 64 + 2 * 1000)
    assert p.floor({"matmul_flops": {"bf16": 1e9}, "copy_bytes": 1e12}) == (pytest.approx(0.256), "arithmetic")
    assert p.floor({"matmul_flops": {"bf16": 1e15}, "copy_bytes": 1e9}) == (pytest.approx(p.bytes() / 1e6), "memory")


def test_expand_takes_the_product_and_globs():
    found = problems.expand("kron", {"shape": ["4,64,64,64", "1,2,3,4"], "n": ["16", "32"], "dtype": ["*16"], "layout": ["*last"]})
    assert len(found) == 2 * 2 * 2 and {s["op"] for s in found} == {"forward"} and {s["shape"] for s in found} == {"4,64,64,64", "1,2,3,4"}
    assert len(problems.expand("kron", {})) == len(problems.SHAPES) * 4 * 4 * 2
    assert {s["layout"] for s in problems.expand("spmm", {})} == {"bhsd"}
    assert problems.expand("kron", {"n": ["7"]}, every_axis=False) == [{"kind": "kron", "n": 7}]
    own = problems.expand("spmm", {"pattern": ["window(3) & causal"], "seq": ["64"], "dim": ["64"], "dtype": ["bf16"]})
    assert [s["pattern"] for s in own] == ["window(3) & causal"]


@pytest.mark.parametrize("wanted, words", [({"n": ["0"]}, "--n 0"), ({"n": ["x"]}, "--n x"), ({"shape": ["1,2,3"]}, "--shape 1,2,3"),
                                           ({"dtype": ["fp8"]}, "--dtype fp8"), ({"shape": ["1,2,0,4"]}, "--shape 1,2,0,4")])
def test_bad_values_are_named(wanted, words):
    with pytest.raises(ValueError, match=words):
        problems.expand("kron", wanted)


def test_bad_kinds_and_axes_are_named():
    with pytest.raises(ValueError, match="krom"):
        problems.kinds(["krom"])
    with pytest.raises(ValueError, match="--n: no such axis in sddmm"):
        problems.check_axes(["sddmm"], {"n": ["4"]})
    assert problems.kinds(["spmm*", "kron"]) == ["spmm", "spmm_transposed", "kron"]


def test_a_problem_has_its_axes_and_no_others():
    p = problems.Problem(kron())
    assert (p.n, p.layout) == (256, "batch_last") and p.text() == "kron 4,64,64,64 forward n 256 fp16 batch_last"
    with pytest.raises(AttributeError, match="no pattern"):
        p.pattern


def test_definitions_of_the_suite_on_numpy_arrays():
    lib, length = splat_ctypes.Splat(), 150
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    for pattern in suite.SUITE + suite.SMALL:
        table = None
        if pattern.random:
            block, r, seed = pattern.random
            rows = lib.expression(f"random_blocks({block}, {r}, {seed})", length).rows(range(0, length, block))
            table = np.array([list(row[::block]) for row in rows], bool)
        ours = np.broadcast_to(pattern.allowed(i, j, suite.Shape(length, length, 0, table)), (length, length))
        theirs = np.array([list(row) for row in lib.expression(pattern.expression, length).rows(range(length))], bool)
        assert (ours == theirs).all(), pattern.expression


def test_every_kind_has_implementations_that_say_what_they_are():
    registry.load()
    for kind in problems.KINDS:
        found = registry.implementations(kind)
        assert len(found) >= 4 and all(i.summary for i in found), kind
        assert "splat" in [i.name for i in found]


def test_registration_and_selection(own):
    @own("kron sddmm", "first")
    def first(p, data):
        """One.
        Two."""

    @own("kron", "second", no_copies=True)
    def second(p, data):
        pass
    assert [i.name for i in registry.select("kron")] == ["first", "second"]
    assert [i.name for i in registry.select("kron", ["*"], ["f*"])] == ["second"] and registry.select("kron", ["s*"])[0].no_copies
    assert registry.implementations("sddmm")[0].summary == "One." and registry.implementations("softmax") == []
    assert registry.unmatched(["sddmm"], ["f*", "second"]) == ["second"]
    with pytest.raises(ValueError, match="first is registered twice for kron"):
        own("kron", "first")(second)
