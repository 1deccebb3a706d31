"""splat.jax on four CPU devices; bench/check_python.py has the checks that need a GPU."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import splat
from hypothesis import given, settings, strategies as st
from problems import assert_right, problems

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402
import splat.jax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P  # noqa: E402

attention = splat.jax.attention


@settings(max_examples=30)
@given(p=problems(max_len=60), layout=st.sampled_from(["bhsd", "bshd"]), jitted=st.booleans())
def test_attention_is_the_reference(p, layout, jitted):
    q, k, v = (jnp.asarray(x, p.dtype) for x in (p.q, p.k, p.v))
    turn = (lambda x: x.transpose(0, 2, 1, 3)) if layout == "bshd" else (lambda x: x)

    def call(q, k, v):
        return attention(turn(q), turn(k), turn(v), p.mask, scale=p.scale, return_lse=True, layout=layout)

    o, lse = (jax.jit(call) if jitted else call)(q, k, v)
    assert o.dtype == q.dtype
    assert_right(turn(o), lse, q, k, v, p.allowed, p.dtype, p.scale)


def some(batch=2, heads=4, kv_heads=None, q_len=40, kv_len=None, dim=16, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    kv = (batch, kv_heads or heads, kv_len or q_len, dim)
    return tuple(jax.random.normal(key, shape) for key, shape in zip(keys, ((batch, heads, q_len, dim), kv, kv)))


MASK = splat.causal() & splat.window(9, 0)


def test_beside_jax_nn():
    q, k, v = (x.transpose(0, 2, 1, 3) for x in some(heads=6, kv_heads=2))
    dense = jnp.asarray(MASK.at(40).to_dense())[None, None]
    want = jax.nn.dot_product_attention(q, k, v, mask=dense)
    np.testing.assert_allclose(splat.jax.dot_product_attention(q, k, v, MASK), want, atol=2e-6)
    np.testing.assert_allclose(splat.jax.dot_product_attention(q[0], k[0], v[0], MASK), want[0], atol=2e-6)
    o, lse = splat.jax.dot_product_attention(q[0], k[0], v[0], MASK, return_lse=True)
    assert o.shape == (40, 6, 16) and lse.shape == (6, 40)


def test_a_step_is_one_custom_call():
    """Under jit nothing is left but XLA's call: no transposition, no copy, no callback into Python."""
    q, k, v = some()
    for layout in ("bhsd", "bshd"):
        text = jax.jit(lambda q, k, v: attention(q, k, v, MASK, layout=layout)).lower(q, k, v).compile().as_text()
        entry = text[text.index("ENTRY") :]
        work = [
            line
            for line in entry.splitlines()
            if " = " in line and "parameter(" not in line and "get-tuple-element" not in line
        ]
        assert len(work) == 1 and "custom-call" in work[0] and 'custom_call_target="splat_attention"' in work[0], entry


def test_masks_are_static_arguments():
    q, k, v = some()
    traced = []

    def call(q, k, v, mask):
        traced.append(mask)
        return attention(q, k, v, mask)

    jitted = jax.jit(call, static_argnames="mask")
    for mask in (MASK, splat.causal() & splat.window(9, 0), "causal", splat.from_dense(np.tri(40, dtype=bool)), splat.full()):
        np.testing.assert_array_equal(jitted(q, k, v, mask=mask), attention(q, k, v, mask))
    assert len(traced) == 4  # the first two are equal


def assert_close(got, want):
    """Another batch or number of heads may have other tiles, whose sums round otherwise."""
    np.testing.assert_allclose(got, want, atol=2e-6, rtol=2e-6)


def test_vmap():
    q, k, v = some()
    stack = jnp.stack([q, q * 0.5, -q])
    want = jnp.stack([attention(x, k, v, MASK) for x in stack])
    assert_close(jax.vmap(lambda x: attention(x, k, v, MASK))(stack), want)
    keys = jnp.stack([k, k * 2, k * 3])
    got, lse = jax.jit(jax.vmap(lambda x, y: attention(x, y, v, MASK, return_lse=True), in_axes=(0, 1), out_axes=1))(
        stack, keys.transpose(1, 0, 2, 3, 4)
    )
    for n in range(3):
        o, want_lse = attention(stack[n], keys[n], v, MASK, return_lse=True)
        assert_close(got[:, n], o)
        assert_close(lse[:, n], want_lse)
    twice = jax.vmap(jax.vmap(lambda x: attention(x, k, v, MASK)))(jnp.stack([stack, stack * 2]))
    assert_close(twice[0], want)


def test_vmap_of_maps():
    q, k, v = some()
    stack = jnp.stack([q, -q, 2 * q])
    rng = np.random.default_rng(0)
    for shape in ((4, 40, 40), (2, 4, 40, 40)):
        mask = splat.from_dense(rng.random(shape) < 0.3)
        got = jax.vmap(lambda x: attention(x, k, v, mask))(stack)
        assert_close(got, jnp.stack([attention(x, k, v, mask) for x in stack]))


def test_shard_map_over_batch_and_heads():
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("batch", "heads"))
    q, k, v = some(batch=4, heads=4, kv_heads=2)
    spec = P("batch", "heads")
    want, want_lse = attention(q, k, v, MASK, return_lse=True)
    sharded = jax.shard_map(
        lambda q, k, v: attention(q, k, v, MASK, return_lse=True),
        mesh=mesh,
        in_specs=(spec, spec, spec),
        out_specs=(spec, spec),
    )
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in (q, k, v)]
    for call in (sharded, jax.jit(sharded)):
        o, lse = call(*placed)
        assert o.sharding.is_equivalent_to(NamedSharding(mesh, spec), 4)
        assert_close(o, want)
        assert_close(lse, want_lse)
    # Without shard_map XLA gathers what it cannot divide: slower, and right.
    assert_close(jax.jit(lambda q, k, v: attention(q, k, v, MASK))(*placed), want)


def test_inside_scan_and_remat():
    q, k, v = some(batch=1)
    step = jax.checkpoint(lambda x, _: (attention(x, k, v, MASK), None))
    got = jax.jit(lambda x: jax.lax.scan(step, x, None, length=3)[0])(q)
    want = q
    for _ in range(3):
        want = attention(want, k, v, MASK)
    np.testing.assert_array_equal(got, want)


def test_gradients_are_refused():
    q, k, v = some()
    with pytest.raises(splat.UnsupportedError, match="no backward pass yet"):
        jax.grad(lambda q: attention(q, k, v, MASK).sum())(q)
    stopped = jax.grad(lambda q: (q + jax.lax.stop_gradient(attention(jax.lax.stop_gradient(q), k, v, MASK))).sum())(q)
    np.testing.assert_array_equal(stopped, jnp.ones_like(q))


def test_as_attention_fn_of_flax():
    """The function gets the arguments that Flax passes."""
    q, k, v = (x.transpose(0, 2, 1, 3) for x in some())
    call = splat.jax.attention_fn(MASK)
    flax = dict(dropout_rng=None, dropout_rate=0.0, broadcast_dropout=True, deterministic=False, precision=None, module=None)
    want = splat.jax.dot_product_attention(q, k, v, MASK)
    np.testing.assert_array_equal(call(q, k, v, bias=None, mask=None, dtype=None, **flax), want)
    half = call(q, k, v, dtype=jnp.bfloat16, **flax)
    assert half.dtype == jnp.bfloat16
    lead = call(*(x[None] for x in (q, k, v)), **flax)  # [..., length, heads, dim]
    np.testing.assert_array_equal(lead[0], want)
    with pytest.raises(splat.UnsupportedError, match="bias or mask"):
        call(q, k, v, mask=jnp.ones((1, 1, 40, 40)), **flax)
    with pytest.raises(splat.UnsupportedError, match="dropout_rate is 0.1"):
        call(q, k, v, dropout_rate=0.1, deterministic=False)
    assert call(q, k, v, dropout_rate=0.1, deterministic=True).shape == q.shape


GOOD = np.zeros((2, 4, 16, 8), np.float32)


@pytest.mark.parametrize(
    "change, kind, sentence",
    [
        (dict(query=GOOD[0]), ValueError, r"query has 3 axes; it must have 4, \[batch, heads, length, dim\]"),
        (dict(query=GOOD[0], layout="bshd"), ValueError, r"\[batch, length, heads, dim\]"),
        (dict(layout="sbhd"), ValueError, "layout is 'sbhd'"),
        (dict(key=GOOD[:, :3], value=GOOD[:, :3]), ValueError, "heads is 4 in query and 3 in key"),
        (dict(key=GOOD.astype(np.float16)), ValueError, "dtype is float32 in query, float16 in key"),
        (dict(query=GOOD[..., :7], key=GOOD[..., :7]), ValueError, "dim is 7"),
        (dict(mask=splat.causal(q_len=17)), ValueError, "the mask is 17 x 17"),
        (dict(mask="caus"), ValueError, "found 'caus'"),
        (dict(mask=np.ones((16, 16), bool)), ValueError, "mask is ndarray"),
        (dict(mask=splat.per_head([splat.full()] * 3)), ValueError, "mask map has 1 x 3"),
        (dict(scale=-1.0), ValueError, "scale is -1"),
        (dict(query=GOOD.astype(int), key=GOOD.astype(int), value=GOOD.astype(int)), splat.UnsupportedError, "dtype int"),
    ],
)
def test_what_is_wrong_is_said_when_traced(change, kind, sentence):
    arguments = dict(query=GOOD, key=GOOD, value=GOOD, mask="full") | change
    with pytest.raises(kind, match=sentence):
        attention(**arguments)
    static = ("mask", "layout", "scale")
    if not isinstance(arguments["mask"], np.ndarray):  # no static argument
        with pytest.raises(kind, match=sentence):
            jax.jit(attention, static_argnames=static)(**arguments)


def test_an_exported_function_of_another_process_finds_its_mask(tmp_path):
    """Compiled code that travels holds the mask's text; one of data says that it is not known."""
    from jax import export

    pytest.importorskip("flatbuffers", reason="JAX serialises with flatbuffers, which is not installed")
    q, k, v = some()
    allowed = [export.DisabledSafetyCheck.custom_call("splat_attention")]
    for name, mask in (("text", splat.causal(align="top_left")), ("data", splat.from_dense(np.tri(40, dtype=bool)))):
        made = export.export(jax.jit(lambda q, k, v: attention(q, k, v, mask)), disabled_checks=allowed)(q, k, v)
        (tmp_path / name).write_bytes(made.serialize())
    np.savez(tmp_path / "arrays.npz", q=q, k=k, v=v, want=attention(q, k, v, "causal"))
    code = """
import pathlib, sys, numpy as np, jax, splat.jax
from jax import export
folder = pathlib.Path(sys.argv[1])
arrays = np.load(folder / "arrays.npz")
call = lambda name: export.deserialize((folder / name).read_bytes()).call(arrays["q"], arrays["k"], arrays["v"])
np.testing.assert_array_equal(call("text"), arrays["want"])
try:
    jax.block_until_ready(call("data"))
except Exception as error:
    assert "not known in this process" in str(error), error
else:
    sys.exit("no error")
"""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def shim_in(folder, **variables):
    code = (
        "import splat.jax, jax.numpy as jnp; x = jnp.ones((1, 1, 8, 8));"
        "assert float(splat.jax.attention(x, x, x, 'causal').sum()) == 64"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), SPLAT_CACHE_DIR=str(folder), **variables)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_the_custom_call_is_built_once_and_anew_when_damaged(tmp_path):
    folder = tmp_path / "cache"
    assert shim_in(folder).returncode == 0
    (made,) = folder.iterdir()
    first = made.stat().st_mtime_ns
    assert shim_in(folder, CC="/nowhere/cc", PATH="/nowhere").returncode == 0 and made.stat().st_mtime_ns == first
    made.write_bytes(b"damaged")
    assert shim_in(folder).returncode == 0
    (again,) = folder.iterdir()
    assert again == made and made.stat().st_size > 7
    none = shim_in(tmp_path / "other", CC="", PATH="/nowhere")
    assert none.returncode == 1 and "no C compiler is on the PATH" in none.stderr


def test_a_folder_that_others_may_write_is_not_trusted(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    assert shim_in(folder).returncode == 0 and not list(folder.iterdir())
    target = pathlib.Path(tmp_path / "xla.so")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-m", "splat._xla_build", str(target)], env=environment, check=True)
    assert shim_in(folder, SPLAT_JAX_SHIM=str(target), PATH="/nowhere").returncode == 0 and not list(folder.iterdir())
