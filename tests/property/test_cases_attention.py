"""Kinds of fault that broke other attention kernels, on the CPU device: each as a property, none as an instance."""

import ctypes
import mmap
import threading

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

import splat_bindings as splat
from patterns import examples, expressions, masks
from test_attention_properties import reference

lib = splat.lib


@pytest.fixture(scope="module")
def ctx():
    return splat.context()


def kernel_for(ctx, mask, q, v, tile=(0, 0), dtype=splat.FP32):
    """A compiled kernel for tensors of these shapes."""
    options = splat.options(
        dtype=dtype,
        device=splat.CPU,
        head_dim=q.shape[3],
        value_dim=v.shape[3],
        batch=q.shape[0],
        heads=q.shape[1],
        kv_heads=v.shape[1],
        tile_rows=tile[0],
        tile_cols=tile[1],
        layout=1 if tile != (0, 0) else 0,  # a forced tile walks tokens in order
    )
    return splat.Handle("kernel", lib.splat_compile, ctx.pointer, mask.pointer, ctypes.byref(options))


def run(kernel, q, k, v, scale=0.0):
    batch, heads, q_len, _ = q.shape
    o = np.full((batch, heads, q_len, v.shape[3]), np.nan, np.float32)
    lse = np.full((batch, heads, q_len), np.nan, np.float32)
    args = splat.Args()
    lib.splat_attention_args_init(ctypes.byref(args))
    args.batch, args.heads, args.kv_heads, args.q_len, args.kv_len = batch, heads, k.shape[1], q_len, k.shape[2]
    args.q, args.k, args.v, args.o = splat.tensor(q), splat.tensor(k), splat.tensor(v), splat.tensor(o)
    args.lse, args.lse_batch_stride, args.lse_head_stride = lse.ctypes.data, heads * q_len, q_len
    args.scale = scale
    needed = splat.size_t()
    splat.check(lib.splat_workspace_bytes(kernel.pointer, splat.i64(batch), splat.i64(heads), ctypes.byref(needed)))
    workspace = np.empty(needed.value + 256, dtype=np.uint8)
    if needed.value:
        args.workspace, args.workspace_bytes = (workspace.ctypes.data + 255) // 256 * 256, needed.value
    splat.check(lib.splat_run(kernel.pointer, ctypes.byref(args), None))
    return o, lse


def tensors(seed, mask, dim=16, value_dim=8, batch=1, heads=1, kv_heads=1, spread=1.0):
    rng = np.random.default_rng(seed)
    make = lambda heads, rows, dim: rng.standard_normal((batch, heads, rows, dim)).astype(np.float32)
    return (
        make(heads, mask.shape[-2], dim) * np.float32(spread),
        make(kv_heads, mask.shape[-1], dim),
        make(kv_heads, mask.shape[-1], value_dim),
    )


def attend(ctx, mask, q, k, v, **more):
    return run(kernel_for(ctx, splat.mask_from_array(mask), q, v, **more), q, k, v)


def agrees(o, lse, want, want_lse, error):
    assert not np.isnan(o).any() and not np.isnan(lse).any()
    empty = np.isneginf(want_lse)
    assert np.array_equal(np.isneginf(lse), empty) and np.all(o[empty] == 0)
    assert np.all(np.abs(o - want) <= error)
    assert np.all(np.abs(lse[~empty] - want_lse[~empty]) <= error * (1 + np.abs(want_lse[~empty])))


# ---- Rows with nothing allowed, and shards of keys ----


@examples(60)
@given(mask=masks(100), seed=st.integers(0, 2**32 - 1))
def test_shards_of_keys_merge_by_their_lse(ctx, mask, seed):
    """Attention over two sets of keys, merged with the weights that lse gives, is attention over both: also where a
    row sees nothing of one set, or of both."""
    rng = np.random.default_rng(seed)
    q, k, v = tensors(seed, mask)
    mine = rng.random(mask.shape[1]) < rng.choice([0.1, 0.5, 0.9])
    parts = [attend(ctx, mask & side, q, k, v) for side in (mine, ~mine)]
    top = np.maximum(parts[0][1], parts[1][1])
    weights = [np.where(np.isneginf(lse), 0, np.exp(lse - np.where(np.isneginf(top), 0, top))) for _, lse in parts]
    total = weights[0] + weights[1]
    merged = sum(w[..., None] * o for w, (o, _) in zip(weights, parts)) / np.where(total > 0, total, 1)[..., None]
    with np.errstate(divide="ignore"):
        merged_lse = np.log(total) + np.where(np.isneginf(top), 0, top)
    want, want_lse, _ = reference(q, k, v, mask, 0.25)
    agrees(merged, merged_lse, want, want_lse, 2e-5)


# ---- What is masked out ----


@examples(60)
@given(mask=masks(100), seed=st.integers(0, 2**32 - 1))
def test_poison_reaches_those_alone_who_see_it(ctx, mask, seed):
    """NaN and Inf in some keys and values: rows that see none of them are bit for bit as without, in the same tiles."""
    rng = np.random.default_rng(seed)
    q, k, v = tensors(seed, mask)
    kernel = kernel_for(ctx, splat.mask_from_array(mask), q, v)
    o, lse = run(kernel, q, k, v)
    poisoned = rng.random(mask.shape[1]) < rng.choice([0.02, 0.2, 1.0])
    k, v = k.copy(), v.copy()
    k[:, :, poisoned] = rng.choice([np.nan, np.inf, -np.inf, 0.5])
    v[:, :, poisoned] = rng.choice([np.nan, np.inf, -np.inf])
    after, after_lse = run(kernel, q, k, v)
    clean = ~(mask & poisoned).any(axis=1)
    assert np.array_equal(o[:, :, clean], after[:, :, clean])
    assert np.array_equal(lse[:, :, clean], after_lse[:, :, clean])


@examples(50)
@given(mask=masks(140), seed=st.integers(0, 2**32 - 1))
def test_a_pair_less_leaves_all_other_rows_alone(ctx, mask, seed):
    """Taking one pair away makes its tile a partial one, or adds to what is masked there: other rows of the tile, then
    computed by other code, keep their results bit for bit."""
    assume(mask.any())
    rng = np.random.default_rng(seed)
    q, k, v = tensors(seed, mask)
    i, j = rng.choice(np.argwhere(mask))
    less = mask.copy()
    less[i, j] = False
    o, lse = attend(ctx, mask, q, k, v, tile=(64, 32))
    after, after_lse = attend(ctx, less, q, k, v, tile=(64, 32))
    others = np.arange(mask.shape[0]) != i
    assert np.array_equal(o[:, :, others], after[:, :, others])
    assert np.array_equal(lse[:, :, others], after_lse[:, :, others])
    assert not np.array_equal(lse[:, :, i], after_lse[:, :, i])


@examples(40)
@given(mask=masks(90), seed=st.integers(0, 2**32 - 1), depth=st.sampled_from([6e4, 1e6, 1e30]))
def test_scores_far_below_zero_count(ctx, mask, seed, depth):
    """All of a row's scores may lie below any sentinel: softmax is as if they lay around zero."""
    q, k, v = tensors(seed, mask, dim=8)
    q[..., 1:] *= np.float32(depth**-0.5)  # so that scores differ by little
    q[..., 0], k[..., 0] = -np.float32(depth**0.5), np.float32(depth**0.5)
    o, lse = attend(ctx, mask, q, k, v)
    want, want_lse, _ = reference(q, k, v, mask, 8**-0.5)
    empty = ~mask.any(axis=1)
    assert np.all(lse[:, :, empty] == -np.inf) and np.all(o[:, :, empty] == 0)
    assert np.all(np.isfinite(lse[:, :, ~empty])) and np.all(lse[:, :, ~empty] < -depth / 4)
    alive = o[:, :, ~empty]
    seen = np.where(mask[None, None, ~empty, :, None], v[:, :, None], np.nan)
    if alive.size:  # a mean of values that the row sees, whatever the rounding of such scores
        assert np.all(alive >= np.nanmin(seen, axis=3) - 1e-5) and np.all(alive <= np.nanmax(seen, axis=3) + 1e-5)
        assert np.all(np.abs(lse[:, :, ~empty] - want_lse[:, :, ~empty]) <= 1e-6 * depth)


# ---- Lengths, dims, heads ----

AWKWARD = [1, 2, 17, 63, 65, 127, 129, 1000, 4095]


@pytest.mark.parametrize("length", AWKWARD)
@pytest.mark.parametrize("texture", ["causal", "window(3)", "strided(7)", "cols(0, 1)", "coin"])
def test_awkward_lengths(ctx, length, texture):
    """The last row and the last column by themselves, and everything else; zero-filled tail keys weigh nothing."""
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    mask = {
        "causal": j <= i,
        "window(3)": abs(i - j) <= 3,
        "strided(7)": (i - j) % 7 == 0,
        "cols(0, 1)": (j == 0) & (i >= 0),
        "coin": np.random.default_rng(length).random((length, length)) < 0.5,
    }[texture]
    handle = splat.mask_from_array(mask) if texture == "coin" else splat.mask_from_expression(texture, length, length)
    q, k, v = tensors(length, mask, dim=8)
    v += 3  # a key of zeros that weighed something would pull results towards 0
    o, lse = run(kernel_for(ctx, handle, q, v), q, k, v)
    rows = np.unique(np.r_[0, length - 1, np.random.default_rng(1).integers(0, length, 60)])
    want, want_lse, _ = reference(q[:, :, rows], k, v, mask[rows], 8**-0.5)
    agrees(o[:, :, rows], lse[:, :, rows], want, want_lse, 3e-5)
    assert not np.isnan(o).any() and not np.isnan(lse).any()
    if mask[:, -1].any():  # whoever sees the last column alone gets its value
        alone = np.zeros_like(mask)
        alone[:, -1] = mask[:, -1]
        o, _ = attend(ctx, alone, q, k, v)
        assert np.allclose(o[0, 0, mask[:, -1]], v[0, 0, -1], rtol=1e-6)


@pytest.mark.parametrize(
    "dim, value_dim", [(40, 72), (72, 40), (80, 80), (96, 192), (192, 96), (256, 8), (8, 256), (200, 200)]
)
def test_head_dims_that_are_no_powers_of_two(ctx, dim, value_dim):
    mask = np.tril(np.ones((70, 90), bool), 20)
    q, k, v = tensors(dim, mask, dim=dim, value_dim=value_dim)
    want, want_lse, _ = reference(q, k, v, mask, dim**-0.5)
    agrees(*attend(ctx, mask, q, k, v), want, want_lse, 2e-5)


@pytest.mark.parametrize("ratio", [1, 3, 5, 7])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("empty", ["none", "one head", "one batch entry", "all"])
def test_maps_of_masks_for_grouped_heads(ctx, ratio, kv_heads, empty):
    batch, heads = 2, ratio * kv_heads
    rng = np.random.default_rng(ratio)
    all_masks = rng.random((batch, heads, 50, 66)) < 0.3
    if empty == "one head":
        all_masks[:, heads - 1] = False
    elif empty == "one batch entry":
        all_masks[1] = False
    elif empty == "all":
        all_masks[:] = False
    handles = [splat.mask_from_array(np.ascontiguousarray(m)) for m in all_masks.reshape(-1, 50, 66)]
    pointers = (splat.ptr * len(handles))(*[h.pointer for h in handles])
    map = splat.Handle("mask", lib.splat_mask_map, pointers, splat.i64(batch), splat.i64(heads))
    q, k, v = tensors(7, all_masks[0, 0], batch=batch, heads=heads, kv_heads=kv_heads)
    want, want_lse, _ = reference(q, k, v, all_masks, 0.25)
    agrees(*run(kernel_for(ctx, map, q, v), q, k, v), want, want_lse, 2e-5)


@pytest.mark.parametrize("q_len, kv_len", [(1, 300), (300, 1), (64, 300), (300, 64), (129, 65)])
@pytest.mark.parametrize("align", [splat.BOTTOM_RIGHT, splat.TOP_LEFT])
def test_unequal_lengths_and_both_alignments(ctx, q_len, kv_len, align):
    off = kv_len - q_len if align == splat.BOTTOM_RIGHT else 0
    i, j = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    for text, mask in [("causal", j <= i + off), ("window(5, 2)", (j - i - off >= -5) & (j - i - off <= 2))]:
        mask = np.broadcast_to(mask, (q_len, kv_len))
        q, k, v = tensors(q_len, mask)
        want, want_lse, _ = reference(q, k, v, mask, 0.25)
        handle = splat.mask_from_expression(text, q_len, kv_len, align)
        agrees(*run(kernel_for(ctx, handle, q, v), q, k, v), want, want_lse, 2e-5)


# ---- Every way to walk a mask ----


@examples(80)
@given(expression=expressions, q_len=st.integers(1, 150), kv_len=st.integers(1, 150), seed=st.integers(0, 2**32 - 1))
def test_every_layout_is_the_reference(ctx, expression, q_len, kv_len, seed):
    """Views and passes that the mask suggests, the losers too: each gives what the mask says, empty rows included."""
    mask = expression.array(q_len, kv_len, kv_len - q_len)
    handle = splat.mask_from_expression(expression.text, q_len, kv_len)
    q, k, v = tensors(seed, mask)
    want, want_lse, _ = reference(q, k, v, mask, 0.25)
    for layout in range(1, 100):
        options = splat.options(dtype=splat.FP32, device=splat.CPU, head_dim=16, value_dim=8, layout=layout)
        pointer = splat.ptr()
        status = lib.splat_compile(ctx.pointer, handle.pointer, ctypes.byref(options), ctypes.byref(pointer))
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


# ---- Large offsets, many rows ----


@pytest.mark.parametrize("beyond", [-1, 0, 1])
@pytest.mark.parametrize("axis", ["batch", "head", "row"])
def test_offsets_around_two_to_the_31st(ctx, axis, beyond):
    """Elements 2^31 - 8, 2^31 and 2^31 + 8 of a tensor: its memory is reserved, and touched only where they lie."""
    stride = 2**31 + 8 * beyond
    batch, heads, rows, dim = {"batch": (2, 1, 3, 8), "head": (1, 2, 3, 8), "row": (1, 1, 2, 8)}[axis]
    bytes_needed = (stride + 64) * 4
    region = mmap.mmap(-1, bytes_needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # MAP_NORESERVE
    whole = np.frombuffer(region, np.float32)
    strides = {"batch": (stride, rows * dim, dim), "head": (stride, stride, dim), "row": (stride, stride, stride)}[axis]
    far = np.lib.stride_tricks.as_strided(whole, (batch, heads, rows, dim), [4 * s for s in (*strides, 1)])
    rng = np.random.default_rng(3)
    near = rng.standard_normal((3, batch, heads, rows, dim)).astype(np.float32)
    mask = np.ones((rows, rows), bool)
    handle = splat.mask_from_array(mask)
    kernel = kernel_for(ctx, handle, near[0], near[2])
    want = run(kernel, *near)
    for which in range(3):
        far[...] = near[which]
        inputs = [near[0], near[1], near[2]]
        inputs[which] = far
        got = run(kernel, *inputs)
        assert np.array_equal(got[0], want[0]) and np.array_equal(got[1], want[1])
    del far, inputs, whole


def test_more_than_65535_row_tiles_and_rows(ctx):
    length = 70001
    handle = splat.mask_from_expression("window(1, 0)", length, length)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, length, 8)).astype(np.float32) for _ in range(3))
    o, lse = run(kernel_for(ctx, handle, q, v), q, k, v)
    scores = np.stack([(q[0, 0, 1:] * k[0, 0, :-1]).sum(1), (q[0, 0, 1:] * k[0, 0, 1:]).sum(1)]) / np.sqrt(8)
    weights = np.exp(scores - scores.max(0))
    want = (weights[0, :, None] * v[0, 0, :-1] + weights[1, :, None] * v[0, 0, 1:]) / weights.sum(0)[:, None]
    assert np.abs(o[0, 0, 1:] - want).max() < 1e-5
    assert np.allclose(o[0, 0, 0], v[0, 0, 0], atol=1e-6) and not np.isnan(lse).any()


# ---- The same again ----


def test_a_hundred_runs_in_four_threads_give_the_same_bits(ctx):
    mask = np.random.default_rng(5).random((150, 150)) < 0.4
    q, k, v = tensors(5, mask, heads=3, kv_heads=1)
    kernel = kernel_for(ctx, splat.mask_from_array(mask), q, v)
    first = [x.tobytes() for x in run(kernel, q, k, v)]
    assert not any(np.isnan(np.frombuffer(x, np.float32)).any() for x in first)
    wrong = []

    def again():
        for _ in range(25):
            if [x.tobytes() for x in run(kernel, q, k, v)] != first:
                wrong.append(1)

    threads = [threading.Thread(target=again) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
