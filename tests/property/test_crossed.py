"""Everything at once: maps of random masks, each in a random form, any grouping of heads, every layout; against NumPy in
double precision."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, strategies as st

import splat_bindings as splat
from patterns import examples, expressions, lengths, masks
from test_attention_properties import reference
from test_cases_attention import agrees, run, tensors
from test_cases_inputs import mask_from_blocks, mask_from_callback

lib = splat.lib


@pytest.fixture(scope="module")
def ctx():
    return splat.context()


def transposed(array):
    """The same pairs, from an array whose transpose is stored, and whose rows are apart."""
    wide = np.ones((array.shape[0], array.shape[1] + 5), bool)
    wide[:, :-5] = array.T.copy().T
    return splat.mask_from_array(wide[:, :-5])


def complement_of_the_rest(array):
    a = splat.complement(splat.acsr(splat.mask_from_array(~array)))
    return splat.Handle("mask", lib.splat_mask_from_acsr, a.pointer)


FORMS = {
    "bytes": splat.mask_from_array,
    "bits": splat.mask_from_bits,
    "csr": splat.mask_from_csr,
    "callback": mask_from_callback,
    "blocks": lambda array: mask_from_blocks(array, 1, 1, *array.shape),
    "gaps": transposed,
    "complement": complement_of_the_rest,
}


@st.composite
def crossed(draw):
    """Lengths, batch, heads, key heads, and (array, mask) of each entry of a map."""
    q_len, kv_len = draw(st.one_of(st.integers(1, 90), lengths)), draw(st.one_of(st.integers(1, 90), lengths))
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3]))
    heads = kv_heads * group
    map_batch, map_heads = draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads]))
    entries = []
    for _ in range(map_batch * map_heads):
        if entries and draw(st.integers(0, 3)) == 0:
            entries.append(entries[draw(st.integers(0, len(entries) - 1))])
            continue
        expression = draw(expressions)
        align = draw(st.sampled_from([splat.BOTTOM_RIGHT, splat.TOP_LEFT]))
        array = expression.array(q_len, kv_len, kv_len - q_len if align == splat.BOTTOM_RIGHT else 0)
        if draw(st.integers(0, 4)) == 0:  # a square of the mask the other way round
            n = min(q_len, kv_len)
            array = array.copy()
            array[:n, :n] = array[:n, :n].T.copy()
        elif draw(st.booleans()):
            entries.append((array, splat.mask_from_expression(expression.text, q_len, kv_len, align), expression.text))
            continue
        form = draw(st.sampled_from(sorted(FORMS)))
        entries.append((array, FORMS[form](np.ascontiguousarray(array)), f"{form} of {expression.text}"))
    return q_len, kv_len, batch, heads, kv_heads, map_batch, map_heads, entries


def as_map(entries, batch, heads):
    pointers = (splat.ptr * len(entries))(*[mask.pointer for _, mask, _ in entries])
    return splat.Handle("mask", lib.splat_mask_map, pointers, splat.i64(batch), splat.i64(heads))


@examples(120)
@given(
    case=crossed(),
    dims=st.sampled_from([(8, 8), (16, 8), (40, 72), (64, 64), (8, 128)]),
    seed=st.integers(0, 2**32 - 1),
    arch=st.sampled_from([0, 80, 90]),
)
def test_any_map_in_every_layout(ctx, case, dims, seed, arch):
    q_len, kv_len, batch, heads, kv_heads, map_batch, map_heads, entries = case
    whole = np.stack([array for array, _, _ in entries]).reshape(map_batch, map_heads, q_len, kv_len)
    whole = np.broadcast_to(whole, (batch, heads, q_len, kv_len))
    mask = entries[0][1] if len(entries) == 1 and seed % 2 else as_map(entries, map_batch, map_heads)
    q, k, v = tensors(seed, whole[0, 0], dims[0], dims[1], batch, heads, kv_heads)
    want, want_lse, _ = reference(q, k, v, whole, dims[0] ** -0.5)
    for layout in range(0, 100):
        options = splat.options(
            dtype=splat.FP32, device=splat.CPU, arch=arch, head_dim=dims[0], value_dim=dims[1], layout=layout
        )
        options.batch, options.heads, options.kv_heads = batch, heads, kv_heads
        pointer = splat.ptr()
        status = lib.splat_compile(ctx.pointer, mask.pointer, ctypes.byref(options), ctypes.byref(pointer))
        if status:
            sentence = lib.splat_last_error().decode()
            assert status == 2 and layout > 1, sentence  # SPLAT_UNSUPPORTED; token order suits every mask
            if "has layouts 1 to" in sentence:
                break
            continue
        kernel = splat.Handle.__new__(splat.Handle)
        kernel.destroy, kernel.pointer = lib.splat_kernel_destroy, pointer
        agrees(*run(kernel, q, k, v), want, want_lse, 2e-5)
    else:
        pytest.fail("there is no end of layouts")


@examples(60)
@given(a=masks(60), expression=expressions, op=st.sampled_from([splat.UNION, splat.INTERSECTION, splat.DIFFERENCE]))
def test_algebra_on_acsrs_is_canonical(a, expression, op):
    """What set operators make of runs and bits equals, as an encoding, what is read from the array."""
    b = expression.array(*a.shape, a.shape[1] - a.shape[0])
    x, y = splat.acsr(splat.mask_from_array(a)), splat.acsr(splat.mask_from_expression(expression.text, *a.shape))
    want = {splat.UNION: a | b, splat.INTERSECTION: a & b, splat.DIFFERENCE: a & ~b}[op]
    made = splat.combine(x, op, y)
    assert np.array_equal(splat.expand(made), want)
    assert splat.equal(made, splat.acsr(splat.mask_from_array(want.copy())))
    assert splat.equal(splat.complement(made), splat.acsr(splat.mask_from_array(~want)))
