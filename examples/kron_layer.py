"""The feed-forward block of ViT-S/16 with Kronecker-sparse weights in PyTorch, timed against the dense block.

    python examples/kron_layer.py [--small]

A batch of 128 images of 196 tokens, width 384, hidden 1536. Both matrices become products of two factors: up
(6,64,64,1)(1,768,192,2), down (6,64,256,1)(1,128,128,3), 40 % of the weights in all.
"""

import argparse
import sys
import time

try:
    import splat.torch
    import torch
    from torch import nn
except ImportError as error:
    print(f"this example needs PyTorch and splat: {error}", file=sys.stderr)
    sys.exit(3)

UP = [(6, 64, 64, 1), (1, 768, 192, 2)]  # 384 -> 384 -> 1536
DOWN = [(6, 64, 256, 1), (1, 128, 128, 3)]  # 1536 -> 384 -> 384


class Block(nn.Module):
    def __init__(self, up, down, width=384):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), up, down

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


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


def train(block, x):
    block.zero_grad(set_to_none=True)
    block(x).square().mean().backward()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true", help="a size for a test")
    small = parser.parse_args().small
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    images = 1 if small else 128 if device == "cuda" else 4
    x = torch.randn(images, 196, 384, device=device, dtype=dtype)
    blocks = {
        "dense": Block(nn.Linear(384, 1536), nn.Linear(1536, 384)),
        "kron": Block(splat.torch.KronLinear(UP), splat.torch.KronLinear(DOWN)),
    }
    repeats = 1 if device == "cpu" else 50
    print(f"{'':8} {'weights':>10} {'forward':>12} {'and backward':>14}   ms, {images} x 196 tokens, {dtype} on {device}")
    for name, block in blocks.items():
        block.to(device=device, dtype=dtype)
        weights = sum(p.numel() for p in block.parameters())
        with torch.no_grad():
            forward = milliseconds(lambda: block(x), device, repeats)
        both = milliseconds(lambda: train(block, x), device, repeats)
        print(f"{name:8} {weights:10} {forward:12.3f} {both:14.3f}")
    # The same weights as one dense matrix give the same result.
    layer = blocks["kron"].up
    dense = layer(torch.eye(384, device=device, dtype=dtype)) - layer.bias
    error = (layer(x) - (x @ dense + layer.bias)).float().abs().max().item()
    print(f"against the product of its factors as a dense matrix: largest difference {error:.1e}")


if __name__ == "__main__":
    main()
