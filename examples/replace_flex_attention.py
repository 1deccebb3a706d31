"""FlexAttention replaced in PyTorch: the mask_mod stays, the block mask goes.

python examples/replace_flex_attention.py [--small]
"""

import argparse
import sys

try:
    import splat
    import splat.torch
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as error:
    print(f"this example needs PyTorch and splat: {error}", file=sys.stderr)
    sys.exit(3)

WINDOW = 100


def sliding_window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx <= WINDOW)


def before(q, k, v):
    length = q.shape[2]
    block_mask = create_block_mask(sliding_window, None, None, length, length, device=q.device)
    return flex_attention(q, k, v, block_mask=block_mask)


def after(q, k, v):
    length = q.shape[2]
    mask = splat.torch.from_mask_mod(sliding_window, None, None, length, device=q.device)  # once, and kept, in real code
    return splat.torch.attention(q, k, v, mask)


def better(q, k, v):
    """The same mask as an expression: made without looking at length^2 pairs, and good for any length."""
    return splat.torch.attention(q, k, v, splat.causal() & splat.window(WINDOW, 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a size for a test")
    small = parser.parse_args().small
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    length = 300 if small else 2048
    q, k, v = (torch.randn(1, 4, length, 64, device=device, dtype=dtype) for _ in range(3))
    want = before(q, k, v).float()
    worst = 0.0
    for function in (after, better, torch.compile(better, fullgraph=True, backend="aot_eager")):
        difference = (function(q, k, v).float() - want).abs().max().item()
        worst = max(worst, difference)
        print(f"{getattr(function, '__name__', 'compiled')}: largest difference from FlexAttention {difference:.1e}")
    mask = splat.torch.from_mask_mod(sliding_window, None, None, length)
    same = mask.same_pairs((splat.causal() & splat.window(WINDOW, 0)).at(length))
    print(f"the mask_mod and the expression allow the same pairs: {same}")
    return 0 if same and worst < (3e-2 if device == "cuda" else 1e-4) else 1


if __name__ == "__main__":
    sys.exit(main())
