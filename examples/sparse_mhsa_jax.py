"""Multi-head self-attention in JAX, dense and sparse: one line differs.

    python examples/sparse_mhsa_jax.py [--small]

With Flax the line is the same: nn.MultiHeadDotProductAttention(..., attention_fn=splat.jax.attention_fn(mask)).
"""

import argparse
import functools
import sys
import time

try:
    import jax
    import jax.numpy as jnp
    import splat
    import splat.jax
except ImportError as error:
    print(f"this example needs JAX and splat: {error}", file=sys.stderr)
    sys.exit(3)

# A window of 255 tokens to each side, and 16 tokens that see and are seen by all.
MASK = splat.window(255) | splat.rows(0, 16) | splat.cols(0, 16)


def dense(q, k, v):
    return jax.nn.dot_product_attention(q, k, v)


def sparse(q, k, v):
    return splat.jax.dot_product_attention(q, k, v, MASK)  # the one line


def init(key, width):
    wq, wk, wv, wo = (jax.random.normal(k, (width, width)) / width**0.5 for k in jax.random.split(key, 4))
    return {"qkv": jnp.concatenate([wq, wk, wv], axis=1), "out": wo}


def mhsa(parameters, x, heads, attend):
    """x [batch, length, width] -> the same."""
    batch, length, width = x.shape
    qkv = (x @ parameters["qkv"].astype(x.dtype)).reshape(batch, length, 3, heads, width // heads)
    o = attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2])
    return o.reshape(batch, length, width) @ parameters["out"].astype(x.dtype)


def milliseconds(function, *arguments, repeats=5):
    function(*arguments).block_until_ready()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        function(*arguments).block_until_ready()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def through_flax(x, heads):
    """The same with Flax's own layer; None where Flax is not installed."""
    try:
        from flax import linen as nn
    except ImportError:
        return None
    layer = nn.MultiHeadDotProductAttention(num_heads=heads, attention_fn=splat.jax.attention_fn(MASK))
    variables = layer.init(jax.random.key(2), x)
    return jax.jit(layer.apply)(variables, x)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a size for a test")
    small = parser.parse_args().small
    gpu = jax.default_backend() == "gpu"
    batch, length, width, heads = (1, 640, 64, 4) if small else (2, 8192 if gpu else 2048, 1024, 16)
    dtype = jnp.bfloat16 if gpu else jnp.float32

    parameters = init(jax.random.key(0), width)
    x = jax.random.normal(jax.random.key(1), (batch, length, width), dtype)
    print(MASK.at(length).explain(head_dim=width // heads, batch=batch, heads=heads))
    for name, attend in (("dense", dense), ("sparse", sparse)):
        layer = jax.jit(functools.partial(mhsa, heads=heads, attend=attend))
        print(f"{name}: {milliseconds(layer, parameters, x):.2f} ms on {jax.devices()[0].device_kind}")

    # The sparse layer is the dense one with the mask as an array, which has length^2 elements.
    allowed = jnp.asarray(MASK.at(length).to_dense())[None, None]
    masked = functools.partial(jax.nn.dot_product_attention, mask=allowed)
    want, got = (mhsa(parameters, x, heads, attend).astype(jnp.float32) for attend in (masked, sparse))
    difference = float(jnp.abs(want - got).max() / jnp.abs(want).max())
    print(f"largest difference from dense attention with the mask as an array: {difference:.1e} of the largest value")
    flax = through_flax(x, heads)
    print("flax is not installed" if flax is None else f"the same through flax.linen: {flax.shape}")
    return 0 if difference < (3e-2 if gpu else 1e-4) else 1


if __name__ == "__main__":
    sys.exit(main())
