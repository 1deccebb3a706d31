"""splat.attention on NumPy arrays."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import splat
from hypothesis import given, settings, strategies as st
from problems import assert_right, problems

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def laid_out(x, how):
    """The same values with other strides."""
    if how == "bshd":
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    if how == "padded":
        wide = np.full((*x.shape[:3], x.shape[3] + 8), np.nan, x.dtype)
        wide[..., : x.shape[3]] = x
        return wide[..., : x.shape[3]]
    if how == "reversed":
        return np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1]
    if how == "fortran":
        return np.asfortranarray(x)
    return x


LAYOUTS = st.sampled_from(["bhsd", "bshd", "padded", "reversed", "fortran"])


@settings(max_examples=80)
@given(p=problems(), layouts=st.tuples(LAYOUTS, LAYOUTS, LAYOUTS))
def test_attention_is_the_reference(p, layouts):
    q, k, v = (x.astype(DTYPES[p.dtype]) for x in (p.q, p.k, p.v))
    o, lse = splat.attention(*(laid_out(x, how) for x, how in zip((q, k, v), layouts)), p.mask, p.scale, return_lse=True)
    assert o.dtype == q.dtype
    assert_right(o, lse, q, k, v, p.allowed, p.dtype, p.scale)
    again = splat.attention(q, k, v, p.mask.at(q.shape[2], k.shape[2]), scale=p.scale)
    assert again.tobytes() == o.tobytes()


def test_an_expression_serves_as_mask_as_it_is():
    x = np.random.default_rng(0).standard_normal((1, 2, 40, 16)).astype(np.float32)
    text = splat.attention(x, x, x, "causal & window(7, 0)")
    assert np.array_equal(text, splat.attention(x, x, x, splat.causal() & splat.window(7, 0)))
    assert_right(text, None, x, x, x, splat.window(7, 0, q_len=40).to_dense(), "float32")


def test_nan_at_masked_keys_stays_there():
    x = np.random.default_rng(1).standard_normal((1, 2, 70, 16)).astype(np.float32)
    k, v = x.copy(), x.copy()
    k[:, :, 50:], v[:, :, 50:] = np.nan, np.inf
    o = splat.attention(x, k, v, "cols(0, 50)")
    assert np.array_equal(o, splat.attention(x, x, x, "cols(0, 50)"))


GOOD = np.zeros((2, 4, 16, 8), np.float32)


@pytest.mark.parametrize(
    "change, kind, sentence",
    [
        (dict(q=GOOD[0]), ValueError, "q has 3 axes"),
        (dict(q=GOOD.tolist()), ValueError, "q is builtins.list; it must be a numpy.ndarray"),
        (dict(k=GOOD[:1]), ValueError, "batch is 2 in q, 1 in k"),
        (dict(k=GOOD[:, :3], v=GOOD[:, :3]), ValueError, "heads is 4 in q and 3 in k"),
        (dict(v=GOOD[:, :2]), ValueError, "heads is 4 in k and 2 in v"),
        (dict(v=GOOD[:, :, :9]), ValueError, "length is 16 in k and 9 in v"),
        (dict(q=np.zeros((2, 4, 16, 16), np.float32)), ValueError, "dim is 16 in q and 8 in k"),
        (dict(q=GOOD[:, :, :0]), ValueError, "no axis may be empty"),
        (dict(q=np.zeros((2, 4, 16, 7), np.float32), k=np.zeros((2, 4, 16, 7), np.float32)), ValueError, "head_dim is 7"),
        (dict(v=np.zeros((2, 4, 16, 264), np.float32)), ValueError, "value_dim is 264"),
        (dict(q=GOOD.astype(np.float64)), splat.UnsupportedError, "q has dtype float64"),
        (dict(v=GOOD.astype(">f4")), splat.UnsupportedError, "native byte order"),
        (dict(k=GOOD.astype(np.float16)), ValueError, "dtype is float32 in q, float16 in k"),
        (dict(mask=splat.causal(q_len=17)), ValueError, "the mask is 17 x 17; q_len x kv_len is 16 x 16"),
        (dict(mask=np.ones((16, 16), bool)), ValueError, "mask is ndarray.*from_dense"),
        (dict(mask="caus"), ValueError, "found 'caus'"),
        (dict(mask=splat.per_head([splat.full()] * 3)), ValueError, "mask map has 1 x 3"),
        (dict(scale=0.0), ValueError, "scale is 0"),
        (dict(scale=-1.0), ValueError, "scale is -1"),
        (dict(scale=float("nan")), ValueError, "scale is"),
    ],
)
def test_what_is_wrong_is_said(change, kind, sentence):
    arguments = dict(q=GOOD, k=GOOD, v=GOOD, mask="full") | change
    with pytest.raises(kind, match=sentence):
        splat.attention(**arguments)


def test_exceptions_of_one_family():
    assert issubclass(splat.UnsupportedError, splat.SplatError) and issubclass(splat.UnsupportedError, NotImplementedError)
    assert splat.UnsupportedError("x").status == "SPLAT_UNSUPPORTED"
    plan = splat.causal(q_len=64)
    with pytest.raises(splat.UnsupportedError, match="tile"):
        plan.explain(tile=(17, 3))


def test_other_threads_run_during_a_long_call():
    """The GIL is released: another thread counts while attention computes."""
    x = np.random.default_rng(0).standard_normal((1, 4, 2048, 64)).astype(np.float32)
    mask = splat.full(q_len=2048)
    splat.attention(x[:, :1], x[:, :1], x[:, :1], mask)
    counted, running = [], threading.Event()

    def work():
        running.set()
        splat.attention(x, x, x, mask)

    worker = threading.Thread(target=work)
    worker.start()
    running.wait()
    while worker.is_alive():
        counted.append(time.perf_counter())
        time.sleep(0.001)
    worker.join()
    assert len(counted) > 3


def test_threads_share_masks_and_kernels():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((1, 2, 130, 16)).astype(np.float32)
    mask = splat.causal() & splat.window(20, 0)
    want = splat.attention(x, x, x, mask)
    wrong = []

    def work(seed):
        for n in range(20):
            fresh = splat.from_function(lambda i, j: (j <= i) & (i - j <= 20), 130)
            for m in (mask, fresh):
                if not np.array_equal(splat.attention(x, x, x, m), want):
                    wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_masks_and_kernels_are_freed():
    """A loop over fresh masks does not grow the process."""
    x = np.zeros((1, 1, 256, 8), np.float32)

    def some(count):
        for n in range(count):
            array = np.random.default_rng(n).random((256, 256)) < 0.5
            mask = splat.from_dense(array)
            splat.attention(x, x, x, mask | splat.cols(0, 1))
        gc.collect()

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    some(150)  # the library's own kept kernels, and the allocator's arenas
    before = resident()
    some(300)
    assert resident() - before < 8 << 20


def test_many_lengths_of_one_pattern_are_not_all_kept():
    mask = splat.causal()
    x = np.zeros((1, 1, 300, 8), np.float32)
    for n in range(1, 300):
        splat.attention(x[:, :, :1], x[:, :, :n], x[:, :, :n], mask)
    assert len(mask._at) <= 64


def test_a_forked_child_computes():
    """OpenMP's threads do not survive a fork; the child works on one thread and ends by itself."""
    x = np.random.default_rng(0).standard_normal((1, 4, 300, 16)).astype(np.float32)
    mask = splat.causal(q_len=300)
    want = splat.attention(x, x, x, mask)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            code = 0 if np.array_equal(splat.attention(x, x, x, mask), want) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(splat.attention(x, x, x, mask), want)


def test_a_missing_library_is_an_import_error_that_says_what_to_do(tmp_path):
    environment = dict(os.environ, SPLAT_LIB=str(tmp_path / "libsplat.so"), PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", "import splat"], env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError: splat: the library" in done.stderr and "set SPLAT_LIB" in done.stderr


def test_nothing_is_imported_or_opened_before_it_is_needed():
    code = (
        "import sys, splat; assert not {'torch', 'jax', 'scipy', 'matplotlib'} & set(sys.modules), sys.modules;"
        "assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
