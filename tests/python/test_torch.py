"""splat.torch on CPU tensors; bench/check_python.py has the checks that need a GPU."""

import os
import subprocess
import sys

import numpy as np
import pytest
import splat
from hypothesis import given, settings, strategies as st
from problems import assert_right, problems

torch = pytest.importorskip("torch", reason="PyTorch is not installed: its wheel with what it needs takes 5 GB")
import splat.torch  # noqa: E402

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
attention = splat.torch.attention


def laid_out(x, how):
    if how == "bshd":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "padded":
        wide = torch.full((*x.shape[:3], x.shape[3] + 5), float("nan"), dtype=x.dtype)
        wide[..., : x.shape[3]] = x
        return wide[..., : x.shape[3]]
    if how == "packed":  # as chunks of one projection: [batch, length, 3, heads, dim]
        batch, heads, rows, dim = x.shape
        packed = torch.full((batch, rows, 3, heads, dim), float("nan"), dtype=x.dtype)
        packed[:, :, 1] = x.transpose(1, 2)
        return packed[:, :, 1].transpose(1, 2)
    if how == "dim first":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    return x


LAYOUTS = st.sampled_from(["bhsd", "bshd", "padded", "packed", "dim first"])


def numbers(x):
    return x.to(torch.float64).numpy()


@settings(max_examples=80)
@given(p=problems(), layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS), operator=st.booleans())
def test_attention_is_the_reference(p, layouts, operator):
    q, k, v = (torch.from_numpy(x).to(DTYPES[p.dtype]) for x in (p.q, p.k, p.v))
    views = [laid_out(x, how) for x, how in zip((q, k, v), layouts)]
    o, lse = attention(*views, p.mask, p.scale, return_lse=True, enable_gqa=True)
    assert o.dtype == q.dtype and lse.dtype == torch.float32
    assert_right(numbers(o), lse.numpy(), numbers(q), numbers(k), numbers(v), p.allowed, p.dtype, p.scale)
    if operator:
        again = torch.ops.splat.attention(*views, p.mask.key, p.scale, True)
    else:
        again = attention(*views, p.mask.at(q.shape[2], k.shape[2]), scale=p.scale, enable_gqa=True)
    assert torch.equal(again, o) and again.stride() == o.stride()


def some(heads=4, length=64, dim=16, kv_heads=None, dtype=torch.float32, batch=2):
    torch.manual_seed(0)
    q = torch.randn(batch, heads, length, dim, dtype=dtype)
    k, v = (torch.randn(batch, kv_heads or heads, length, dim, dtype=dtype) for _ in range(2))
    return q, k, v


def test_beside_scaled_dot_product_attention():
    q, k, v = some()
    mask = splat.causal() & splat.window(9, 0)
    dense = torch.from_numpy(mask.at(64).to_dense())
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, dense)
    torch.testing.assert_close(attention(q, k, v, mask), want)
    q, k, v = some(heads=6, kv_heads=2)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, dense, enable_gqa=True, scale=0.3)
    torch.testing.assert_close(attention(q, k, v, mask, scale=0.3, enable_gqa=True), want)


def test_beside_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def mask_mod(b, h, i, j):
        return (i - j < 3 * (h + 1)) & (j <= i) | (j < b)

    q, k, v = some(length=40)
    block_mask = create_block_mask(mask_mod, 2, 4, 40, 40, device="cpu")
    want = flex_attention(q, k, v, block_mask=block_mask)
    mask = splat.torch.from_mask_mod(mask_mod, 2, 4, 40)
    assert (mask.map_batch, mask.map_heads) == (2, 4)
    torch.testing.assert_close(attention(q, k, v, mask), want)
    shared = splat.torch.from_mask_mod(lambda b, h, i, j: i >= j, None, None, 40)
    assert shared.same_pairs(splat.causal(q_len=40))


def test_the_output_is_laid_out_as_the_query():
    q, k, v = some()
    assert attention(q, k, v, "full").is_contiguous()
    o = attention(laid_out(q, "bshd"), k, v, "full")
    assert o.transpose(1, 2).is_contiguous() and torch.equal(o, attention(q, k, v, "full"))
    assert attention(q[:, :, :1].expand(-1, -1, 64, -1), k, v, "full").is_contiguous()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("want_lse", [False, True])
def test_compiled_without_a_graph_break(dynamic, want_lse):
    torch._dynamo.reset()
    mask = splat.causal() & splat.window(9, 0)

    def layer(x):
        q, k, v = (x * n for n in (1.0, 0.5, 2.0))
        out = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, return_lse=want_lse)
        o, lse = out if want_lse else (out, torch.zeros(()))
        return o.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1) + 1, lse * 2

    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (48, 50, 64):
        x = torch.randn(2, length, 4, 16)
        for got, want in zip(compiled(x), layer(x)):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("make", [
    lambda: splat.causal(), lambda: splat.causal(q_len=32), lambda: "causal & window(5, 0)",
    lambda: splat.from_dense(np.tri(32, dtype=bool)),
    lambda: splat.from_dense(np.random.default_rng(0).random((4, 32, 32)) < 0.5),
])  # fmt: skip
def test_every_kind_of_mask_is_compiled(make):
    torch._dynamo.reset()
    mask = make()
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, mask) + 1, fullgraph=True, backend="aot_eager")
    q, k, v = some(length=32)
    torch.testing.assert_close(compiled(q, k, v), attention(q, k, v, mask) + 1)


def test_two_masks_in_compiled_code_are_not_mixed_up():
    torch._dynamo.reset()
    q, k, v = some(length=32)
    compiled = torch.compile(lambda m: attention(q, k, v, m), fullgraph=True, backend="aot_eager")
    for mask in (
        splat.causal(),
        splat.window(3),
        splat.from_dense(np.eye(32, dtype=bool)),
        splat.from_dense(np.tri(32, dtype=bool)),
    ):
        torch.testing.assert_close(compiled(mask), attention(q, k, v, mask))
    with pytest.raises(Exception, match="the mask is 31 x 31"):
        compiled(splat.causal(q_len=31))


def test_the_operator_passes_pytorchs_own_checks():
    q, k, v = some(length=24)
    q.requires_grad_(False)
    for layout in ("bhsd", "bshd", "packed", "padded"):
        arguments = (laid_out(q, layout), k, v, splat.causal().key)
        utilities = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        torch.library.opcheck(torch.ops.splat.attention.default, arguments, test_utils=utilities)
        torch.library.opcheck(torch.ops.splat.attention_lse.default, arguments, test_utils=utilities)


def test_fake_tensors_and_function_transforms():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(2, 4, 64, 16).transpose(1, 2).contiguous().transpose(1, 2)
        o = attention(q, q, q, "causal")
        assert o.shape == q.shape and o.stride() == q.stride()
    x = torch.randn(3, 1, 2, 16, 8)
    got = torch.func.vmap(lambda q: attention(q, q, q, "causal"))(x)
    torch.testing.assert_close(got, torch.stack([attention(q, q, q, "causal") for q in x]))


def test_inference_of_a_module_with_parameters():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = torch.nn.Linear(32, 96)

        def forward(self, x):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
            return attention(q, k, v, "causal")

    layer, x = Layer(), torch.randn(2, 20, 32)
    with pytest.raises(splat.UnsupportedError, match="query requires a gradient"):
        layer(x)
    with torch.no_grad():
        o = layer(x)
    with torch.inference_mode():
        assert torch.equal(layer(x), o)


@pytest.mark.parametrize(
    "change, kind, sentence",
    [
        (dict(query=torch.zeros(4, 16, 8)), ValueError, "query has 3 axes"),
        (dict(query=np.zeros((2, 4, 16, 8), np.float32)), ValueError, "query is numpy.ndarray; it must be a torch.Tensor"),
        (dict(key=torch.zeros(2, 2, 16, 8), value=torch.zeros(2, 2, 16, 8)), ValueError, "enable_gqa=True"),
        (dict(key=torch.zeros(2, 4, 16, 8).half()), ValueError, "dtype is torch.float32 for query, torch.float16"),
        (dict(value=torch.zeros(2, 4, 16, 8, device="meta")), ValueError, "device is cpu for query.*meta for value"),
        (dict(query=torch.zeros(2, 4, 16, 16)), ValueError, "dim is 16 in query and 8 in key"),
        (dict(value=torch.zeros(2, 4, 9, 8)), ValueError, "length is 16 in key and 9 in value"),
        (dict(mask=torch.ones(16, 16, dtype=torch.bool)), ValueError, "mask is Tensor"),
        (dict(mask=splat.causal(q_len=17)), ValueError, "the mask is 17 x 17"),
        (dict(mask=splat.per_head([splat.full()] * 3)), ValueError, "mask map has 1 x 3"),
        (dict(scale=-2.0), ValueError, "scale is -2"),
        (dict(scale=0.0), ValueError, "scale is 0"),
    ],
)
def test_what_is_wrong_is_said(change, kind, sentence):
    good = torch.zeros(2, 4, 16, 8)
    for _ in range(2):  # a refusal is not remembered as a launch
        with pytest.raises(kind, match=sentence):
            attention(**(dict(query=good, key=good, value=good, mask="full") | change))


def test_what_is_not_supported_is_said():
    x = torch.zeros(1, 1, 16, 8)
    with pytest.raises(splat.UnsupportedError, match="torch.float64"):
        attention(x.double(), x.double(), x.double(), "full")
    meta = x.to("meta")
    with pytest.raises(splat.UnsupportedError, match="meta"):
        attention(meta, meta, meta, "full")


def test_a_compiled_function_of_another_process_finds_its_mask(tmp_path):
    """An exported program holds the mask's text; one of data says that it is not known."""
    q, k, v = some(length=32)

    class Layer(torch.nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.mask = mask

        def forward(self, q, k, v):
            return attention(q, k, v, self.mask)

    torch.save((q, k, v, attention(q, k, v, "causal")), tmp_path / "tensors.pt")
    for name, mask in (("text", splat.causal()), ("data", splat.from_dense(np.tri(32, dtype=bool)))):
        torch.export.save(torch.export.export(Layer(mask), (q, k, v)), tmp_path / f"{name}.pt2")
    code = """
import sys, torch, splat.torch
q, k, v, want = torch.load(sys.argv[1] + "/tensors.pt")
assert torch.equal(torch.export.load(sys.argv[1] + "/text.pt2").module()(q, k, v), want)
try:
    torch.export.load(sys.argv[1] + "/data.pt2").module()(q, k, v)
except RuntimeError as error:
    assert "not known in this process" in str(error), error
else:
    sys.exit("no error")
"""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
