"""The peers splat is timed beside: FlexAttention, cuDNN and FlashAttention-2 through PyTorch, cuDNN through JAX.

Each maker returns a call(set index) -> output [B, H, S, D], or raises; the caller records what was raised.
"""
import os
import time

import torch
import torch._dynamo

import suite


def flex(pattern, shape, sets):
    """(call, seconds the first call took). The block mask is made outside the timing."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    torch._dynamo.reset()  # one pattern's guards must not slow or stop the next one's compile
    mod = suite.mask_mod(pattern, shape)
    began = time.perf_counter()
    block_mask = create_block_mask(mod, None, None, shape.q_len, shape.kv_len, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)
    q, k, v = sets[0][:3]
    compiled(q, k, v, block_mask=block_mask)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    return (lambda n: compiled(*sets[n][:3], block_mask=block_mask)), seconds


def sdpa(backend, causal, sets):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kind = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}[backend]

    def call(n):
        with sdpa_kernel(kind):
            return torch.nn.functional.scaled_dot_product_attention(*sets[n][:3], is_causal=causal)
    return call


def jax_window(window, sets):
    """cuDNN's causal sliding window. call(count) runs that many and waits: wall clock, [B, S, H, D] inside. Returns
    (call, output) with the output of the first set as a [B, H, S, D] torch tensor."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    arrays = [tuple(jax.dlpack.from_dlpack(t.transpose(1, 2).contiguous()) for t in s[:3]) for s in sets]

    @jax.jit
    def attention(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=(window - 1, 0),
                                            implementation="cudnn")

    output = attention(*arrays[0]).block_until_ready()

    def call(count):
        out = None
        for n in range(count):
            out = attention(*arrays[n % len(arrays)])
        out.block_until_ready()
    return call, torch.from_dlpack(output).transpose(1, 2)
