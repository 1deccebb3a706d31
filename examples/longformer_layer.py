"""A BERT-size layer with Longformer attention in PyTorch, timed against the same layer with dense attention.

    python examples/longformer_layer.py [--small]

Width 768, 12 heads, feed-forward 3072: a window of 256 tokens to each side and 32 global tokens.
"""

import argparse
import sys
import time

try:
    import splat
    import splat.torch
    import torch
    from torch import nn
except ImportError as error:
    print(f"this example needs PyTorch and splat: {error}", file=sys.stderr)
    sys.exit(3)

WINDOW, GLOBAL = 256, 32
LONGFORMER = splat.window(WINDOW) | splat.rows(0, GLOBAL) | splat.cols(0, GLOBAL)


def dense(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v)


def sparse(q, k, v):
    return splat.torch.attention(q, k, v, LONGFORMER)


class Layer(nn.Module):
    def __init__(self, width=768, heads=12, hidden=3072):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x, attend):
        batch, length, width = x.shape
        # [batch, length, 3, heads, dim] -> three [batch, heads, length, dim] views, read where they lie
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        x = self.norm1(x + self.out(attend(q, k, v).transpose(1, 2).reshape(batch, length, width)))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


def milliseconds(function, device, repeats):
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    function()
    best = float("inf")
    for _ in range(3):
        wait()
        began = time.perf_counter()
        for _ in range(repeats):
            function()
        wait()
        best = min(best, (time.perf_counter() - began) / repeats)
    return best * 1e3


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a size for a test")
    small = parser.parse_args().small
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    lengths = (700,) if small else (4096, 8192, 16384) if device == "cuda" else (1024, 2048)
    torch.manual_seed(0)
    layer = Layer(*((96, 3, 128) if small else ())).to(device, dtype).eval()
    width = layer.out.in_features
    for length in lengths:
        x = torch.randn(1, length, width, device=device, dtype=dtype)
        repeats = 20 if device == "cuda" else 1
        times = [milliseconds(lambda attend=attend: layer(x, attend), device, repeats) for attend in (dense, sparse)]
        print(
            f"length {length}, density {LONGFORMER.at(length).density:.3f}: layer {times[0]:.2f} ms dense, {times[1]:.2f} ms sparse"
        )
    if not small and device == "cuda":
        return 0  # the check below needs length^2 scores
    mask = torch.from_numpy(LONGFORMER.at(length).to_dense()).to(device)
    want = layer(x, lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    difference = (layer(x, sparse) - want).abs().max().item()
    print(f"largest difference from dense attention with the mask as an array: {difference:.1e}")
    return 0 if difference < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
