"""Masks in every form give one plan; calls with any numbers give a result or a sentence."""

import ctypes
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

import splat_bindings as splat
from patterns import examples, masks

lib = splat.lib
STAGE_ACSR, STAGE_PLAN = 0, 1
OK, INVALID, UNSUPPORTED, NO_MEMORY = 0, 1, 2, 3

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, splat.i64, splat.i64, splat.ptr)
WRITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_char), splat.size_t, splat.ptr)


def mask_from_callback(array):
    allowed = CALLBACK(lambda i, j, user: int(array[i, j]))
    return splat.Handle("mask", lib.splat_mask_from_callback, allowed, None, *map(splat.i64, array.shape))


def mask_from_blocks(blocks, rows, cols, q_len, kv_len):
    blocks = np.ascontiguousarray(blocks, np.uint8)
    return splat.Handle(
        "mask",
        lib.splat_mask_from_blocks,
        splat.ptr(blocks.ctypes.data),
        *map(splat.i64, (q_len, kv_len, rows, cols, blocks.shape[1])),
    )


def documents_of(mask):
    """An expression for any mask: the union over its rows of a row and the columns it allows."""
    rows = []
    for i, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.r_[0, row.astype(np.int8), 0])).reshape(-1, 2)
        if len(edges):
            columns = " | ".join(f"cols({a}, {b})" for a, b in edges)
            rows.append(f"rows({i}, {i + 1}) & ({columns})")
    return " | ".join(rows) or "~full"


def dump(mask, stage, **fields):
    pieces = []

    def write(text, size, user):
        pieces.append(text[:size])
        return 0

    options = splat.options(head_dim=64, **fields)
    splat.check(lib.splat_dump(mask.pointer, ctypes.byref(options), stage, WRITE(write), None))
    text = b"".join(pieces).decode()
    return "\n".join(line for line in text.splitlines() if " ms" not in line)  # the time that planning took


@examples(60)
@given(mask=masks(40))
def test_every_form_gives_one_acsr_and_one_plan(mask):
    forms = [
        splat.mask_from_array(mask),
        splat.mask_from_bits(mask),
        splat.mask_from_csr(mask),
        mask_from_callback(mask),
        mask_from_blocks(mask, 1, 1, *mask.shape),
        splat.mask_from_expression(documents_of(mask), *mask.shape),
    ]
    forms.append(splat.Handle("mask", lib.splat_mask_from_acsr, splat.acsr(forms[0]).pointer))
    acsrs = [splat.acsr(form) for form in forms]
    assert all(splat.equal(acsrs[0], other) for other in acsrs)
    assert len({dump(form, STAGE_ACSR) for form in forms}) == 1
    assert len({dump(form, STAGE_PLAN) for form in forms}) == 1


@examples(60)
@given(
    blocks=masks(12),
    rows=st.integers(1, 20),
    cols=st.integers(1, 20),
    cut=st.tuples(st.integers(0, 19), st.integers(0, 19)),
)
def test_blocks_are_what_they_expand_to(blocks, rows, cols, cut):
    whole = np.repeat(np.repeat(blocks, rows, 0), cols, 1)
    q_len, kv_len = (max(n - c % b, 1) for n, c, b in zip(whole.shape, cut, (rows, cols)))
    used = blocks[: -(-q_len // rows), : -(-kv_len // cols)]
    a = splat.acsr(mask_from_blocks(used, rows, cols, q_len, kv_len))
    b = splat.acsr(splat.mask_from_array(np.ascontiguousarray(whole[:q_len, :kv_len])))
    assert splat.equal(a, b)


@examples(200)
@given(
    start=st.integers(0, 40),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    width=st.integers(1, 3),
    rows=st.integers(1, 5),
)
@example(start=7, steps=[5, 6], width=1, rows=1)  # two columns that look strided, a third that is not
@example(start=9, steps=[], width=1, rows=3)  # a single column, not the first
@example(start=3, steps=[4, 4, 4, 9], width=1, rows=2)  # a stride that begins off zero and breaks
def test_rows_that_nearly_stride(start, steps, width, rows):
    columns = np.cumsum([start, *steps])
    row = np.zeros(columns[-1] + width + 2, bool)
    for column in columns:
        row[column : column + width] = True
    mask = np.repeat(row[None], rows, 0)
    acsr = splat.acsr(splat.mask_from_array(mask))
    assert np.array_equal(splat.expand(acsr), mask)
    covered = sorted(s + k * d + w for s, d, c, n in splat.rows(acsr)[0] for k in range(c) for w in range(n))
    assert covered == np.flatnonzero(row).tolist()


# ---- Any numbers ----

LIMIT = 2**30
edges = st.sampled_from(
    [-(2**63), -(2**31), -1, 0, 1, 2, 2**20, LIMIT - 1, LIMIT, LIMIT + 1, 2**31, 2**32, 2**62, 2**63 - 1]
)
numbers = st.one_of(st.integers(1, 300), edges)


def outcome(status):
    """Whether it worked; if not, the sentence must be one line that says something."""
    if status == OK:
        return True
    sentence = lib.splat_last_error().decode()
    assert status in (INVALID, UNSUPPORTED, NO_MEMORY), (status, sentence)
    assert len(sentence) > 15 and "\n" not in sentence
    return False


@examples(300)
@given(data=st.data())
def test_any_options_plan_or_say_why_not(data):
    mask = splat.mask_from_expression("window(9) | strided(8)", 100, 90)
    options = splat.options()
    for name in ("head_dim", "value_dim", "batch", "heads", "kv_heads", "tile_rows", "tile_cols"):
        sound = {"tile_rows": st.sampled_from([0, 64, 128]), "tile_cols": st.sampled_from([0, 32, 64])}
        sound.update(head_dim=st.sampled_from([8, 40, 64, 128, 256]), value_dim=st.sampled_from([0, 8, 64]))
        setattr(options, name, data.draw(st.one_of(sound.get(name, st.integers(0, 8)), numbers), label=name))
    for name, most in (("dtype", 3), ("device", 3), ("arch", 91)):
        value = data.draw(st.one_of(st.sampled_from([0, 1]), st.integers(-1, most)), label=name)
        setattr(options, name, value)
    plan = splat.ptr()
    if outcome(lib.splat_plan_create(mask.pointer, ctypes.byref(options), ctypes.byref(plan))):
        assert options.head_dim % 8 == 0 and 8 <= options.head_dim <= 256
        assert options.heads % (options.kv_heads or options.heads) == 0
        lib.splat_plan_destroy(plan)
    else:
        assert not plan


@examples(200)
@given(
    q_len=numbers,
    kv_len=numbers,
    align=st.integers(-1, 2),
    text=st.sampled_from(
        ["full", "causal", "window(1000000000)", "strided(1073741824)", "comb(1073741824, 5)", "dilated(3, 7)"]
    ),
)
def test_any_lengths_make_a_mask_or_say_why_not(q_len, kv_len, align, text):
    mask, acsr = splat.ptr(), splat.ptr()
    status = lib.splat_mask_from_expression(
        text.encode(), splat.i64(q_len), splat.i64(kv_len), align, ctypes.byref(mask)
    )
    sound = 1 <= q_len <= LIMIT and 1 <= kv_len <= LIMIT and align in (0, 1)
    assert outcome(status) == sound
    if sound:
        assert outcome(lib.splat_acsr_create(mask, ctypes.byref(acsr)))  # an expression is never expanded
        assert 0 <= lib.splat_acsr_pairs(acsr) <= q_len * kv_len
        lib.splat_acsr_destroy(acsr)
        lib.splat_mask_destroy(mask)


@examples(300)
@given(data=st.data())
def test_any_arguments_run_or_say_why_not(data):
    """Counts, lengths, strides and pointers that are not the kernel's: refused before anything is touched. What stays
    sound runs, on tensors of that size."""
    sound = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 9, "kv_len": 12}
    ctx = splat.context(threads=1)
    mask = splat.mask_from_expression("causal", 9, 12)
    settings_ = splat.options(dtype=splat.FP32, device=splat.CPU, head_dim=8, heads=4, kv_heads=2)
    kernel = splat.Handle("kernel", lib.splat_compile, ctx.pointer, mask.pointer, ctypes.byref(settings_))
    shapes = {"q": (2, 4, 9, 8), "k": (2, 2, 12, 8), "v": (2, 2, 12, 8), "o": (2, 4, 9, 8)}
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    args = splat.Args()
    lib.splat_attention_args_init(ctypes.byref(args))
    for name, value in sound.items():
        setattr(args, name, value)
    for name, array in arrays.items():
        setattr(args, name, splat.tensor(array))
    broken = data.draw(
        st.sampled_from(["none", "count", "negative stride", "pointer", "scale", "overlap"]), label="broken"
    )
    if broken == "count":
        name = data.draw(st.sampled_from(sorted(sound)), label="name")
        wrong = {
            "batch": lambda n: n < 0 or n >= 2**31,  # any other number is sound, with tensors of its size
            "heads": lambda n: n < 0 or n >= 2**31,
            "kv_heads": lambda n: n < 0 or n == 3 or n > 4,
        }.get(name, lambda n: n != sound[name])
        setattr(args, name, data.draw(numbers.filter(wrong), label="value"))
    tensor = getattr(args, data.draw(st.sampled_from("qkvo"), label="tensor"))
    if broken == "negative stride":
        name = data.draw(st.sampled_from(["batch_stride", "head_stride", "row_stride"]), label="stride")
        setattr(tensor, name, data.draw(st.sampled_from([-(2**63), -(2**31), -8, -1]), label="value"))
    elif broken == "pointer":
        tensor.data = data.draw(st.sampled_from([None, 1, 2, 3]), label="pointer")
    elif broken == "scale":
        args.scale = data.draw(st.sampled_from([-1.0, float("nan"), float("inf"), -float("inf")]), label="scale")
    elif broken == "overlap":
        setattr(args.o, data.draw(st.sampled_from(["batch_stride", "row_stride"]), label="stride"), 0)
    worked = outcome(lib.splat_run(kernel.pointer, ctypes.byref(args), None))
    assert worked == (broken == "none")
    assert np.all(arrays["o"] == 1)  # a mean of ones, or as it was


# ---- Memory: no array of q_len x kv_len but the caller's ----

GROWTH = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import splat_bindings as splat

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

kind = sys.argv[2]
if kind == "expression":
    before = peak()
    mask = splat.mask_from_expression("window(500) | strided(4096) | rows(0, 64) | cols(0, 64)", 1 << 20, 1 << 20)
    acsr = splat.acsr(mask)
else:
    array = np.zeros((4096, 32768), bool)
    array[:, ::97] = True
    before = peak()
    mask = splat.mask_from_array(array)
    acsr = splat.acsr(mask)
print(peak() - before, splat.lib.splat_acsr_bytes(acsr.pointer))
"""


@pytest.mark.parametrize("kind, most", [("expression", 24 << 20), ("bytes", 24 << 20)])
def test_no_dense_array_is_made(kind, most):
    """2^40 pairs from an expression, 2^27 from an array of bytes: peak memory grows by little."""
    here = str(pathlib.Path(__file__).resolve().parent)
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, here, kind], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    grown, kept = json.loads("[" + done.stdout.replace(" ", ", ") + "]")
    assert grown < most and kept < most, (grown, kept)
