"""Times a ViT-S/16 encoder whose feed-forward matrices are products of Kronecker-sparse factors beside the dense one.

    python3 bench/time_vit.py --out bench/results/vit.json

12 blocks, width 384, 6 heads, 128 images of 196 tokens, attention by torch's scaled_dot_product_attention in both. As in the
butterfly literature, only the feed-forward matrices change: up (6,64,64,1)(1,768,192,2), down (6,64,256,1)(1,128,128,3).
Forward passes are replayed from a CUDA graph in alternation. What splat computes is compared with the same factors applied by
torch.einsum, and, in float64, as dense matrices.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "python"))

import torch
from torch import nn

import splat.torch

import record
import timing

UP = [(6, 64, 64, 1), (1, 768, 192, 2)]    # 384 -> 384 -> 1536
DOWN = [(6, 64, 256, 1), (1, 128, 128, 3)]  # 1536 -> 384 -> 384


class EinsumLinear(nn.Module):
    """The same factors by torch.einsum."""

    def __init__(self, other):
        super().__init__()
        self.factors, self.weights, self.bias = other.factors, other.weights, other.bias

    def forward(self, x):
        shape = x.shape[:-1]
        for (a, b, c, d), w in zip(self.factors, self.weights):
            y = torch.einsum("nacd,abdc->nabd", x.reshape(-1, a, c, d), w)
            x = y.reshape(*shape, a * b * d)
        return x if self.bias is None else x + self.bias


class Block(nn.Module):
    def __init__(self, up, down, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = up, down

    def forward(self, x):
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(n, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def encoder(kind, blocks, like=None):
    made = []
    for k in range(blocks):
        if kind == "dense":
            up, down = nn.Linear(384, 1536), nn.Linear(1536, 384)
        elif kind == "splat":
            up, down = splat.torch.KronLinear(UP), splat.torch.KronLinear(DOWN)
        else:
            up, down = EinsumLinear(like[k].up), EinsumLinear(like[k].down)
        block = Block(up, down, 384, 6)
        if like is not None:
            for name in ("norm1", "norm2", "qkv", "out"):
                setattr(block, name, getattr(like[k], name))
        made.append(block)
    return nn.Sequential(*made)


def feed_forward_error(block, x):
    """Largest difference of the feed-forward part from float64 products with dense matrices, over their largest value."""
    def dense(layer, width):
        made = torch.eye(width, device=x.device, dtype=torch.float64)
        for (a, b, c, d), w in zip(layer.factors, layer.weights):
            y = torch.einsum("nacd,abdc->nabd", made.reshape(-1, a, c, d), w.double())
            made = y.reshape(-1, a * b * d)
        return made
    up = x.double() @ dense(block.up, 384) + block.up.bias.double()
    expected = nn.functional.gelu(up) @ dense(block.down, 1536) + block.down.bias.double()
    got = block.down(nn.functional.gelu(block.up(x))).double()
    return ((got - expected).abs().max() / expected.abs().max()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default="vit.json")
    parser.add_argument("--commit")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", default="bf16,fp16")
    args = parser.parse_args()
    results, failed = [], 0
    for dtype_name in args.dtypes.split(","):
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype_name]
        torch.manual_seed(0)
        models = {"dense": encoder("dense", args.blocks), "splat": encoder("splat", args.blocks)}
        models["einsum"] = encoder("einsum", args.blocks, models["splat"])
        x = torch.randn(args.images, 196, 384, device="cuda", dtype=dtype)
        for model in models.values():
            model.to(device="cuda", dtype=dtype).requires_grad_(False)
        error = feed_forward_error(models["splat"][0], x[:4])
        a, b = models["splat"](x).float(), models["einsum"](x).float()
        agree = ((a - b).norm() / b.norm()).item()
        bad = not (error < 2e-2 and agree < 2e-2)
        failed |= bad
        hidden = torch.randn(args.images, 196, 384, device="cuda", dtype=dtype)
        calls = {f"encoder {name}": (lambda n, m=model: m(x)) for name, model in models.items()}
        calls |= {f"feed-forward {name}": (lambda n, m=model[0]: m.down(nn.functional.gelu(m.up(hidden))))
                  for name, model in models.items()}
        times = timing.alternate([timing.Timed(name, call, 1) for name, call in calls.items()], args.rounds, 20.0)
        weights = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
        results.append({"dtype": dtype_name, "times": times, "weights": weights, "error": error, "agree": agree})
        print(f"{dtype_name}: feed-forward error {error:.1e}, encoder differs from einsum by {agree:.1e}"
              f"{'  WRONG' if bad else ''}")
        for name, t in times.items():
            print(f"  {name:22} {t['ms']:8.3f} ms" if "ms" in t else f"  {name:22} {t['error']}")
    record.write(args.out, {"kind": "vit", "meta": record.metadata(None, args.commit), "setup": vars(args), "results": results})
    return failed


if __name__ == "__main__":
    sys.exit(main())
