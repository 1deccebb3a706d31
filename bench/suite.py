"""The measuring suite: every pattern as splat's expression and as an independent definition in plain tensor arithmetic.

A definition is a function (i, j, c) of integer tensors, or NumPy arrays, that broadcast against each other; c is a Shape.
The same function serves FlexAttention as a mask_mod and the reference as rows of booleans. Only random_blocks takes its block table from
splat, because its generator is splat's own. Python's // and % floor, so negative i - j is safe in `% d == 0`.

    python3 bench/suite.py [--seq N]    compares every row of every pattern with splat's ACSR, on the CPU
    python3 bench/suite.py --c          writes the names and expressions as rows of a C array
"""
import argparse
import dataclasses
import math
import sys
from typing import Any, Callable, NamedTuple

import splat_ctypes


@dataclasses.dataclass(frozen=True)
class Shape:
    q_len: int
    kv_len: int
    off: int = 0         # where the diagonal of causal and window lies
    blocks: Any = None   # bool [block rows, block columns] of random_blocks

    @property
    def longest(self):
        return max(self.q_len, self.kv_len)


class Pattern(NamedTuple):
    name: str
    expression: str
    allowed: Callable     # (i, j, Shape) -> bool tensor
    random: tuple = None  # (b, r, seed) when the definition needs Shape.blocks


# ---- Primitives, from the table of the pattern language ----

def full():
    return lambda i, j, c: (i >= 0) & (j >= 0)


def causal():
    return lambda i, j, c: j - i <= c.off


def window(left, right):
    return lambda i, j, c: (j - i >= c.off - left) & (j - i <= c.off + right)


def dilated(r, d):
    return lambda i, j, c: ((i - j) % d == 0) & (i - j <= r * d) & (j - i <= r * d)


def strided(d):
    return lambda i, j, c: (i - j) % d == 0


def blocks(b):
    return lambda i, j, c: i // b == j // b


def banded_blocks(b, p, n):
    return lambda i, j, c: (j // b - i // b >= -p) & (j // b - i // b <= n)


def rows(a, b):
    return lambda i, j, c: (i >= a) & (i < b) & (j >= 0)


def cols(a, b):
    return lambda i, j, c: (j >= a) & (j < b) & (i >= 0)


def comb(length, c_):
    return lambda i, j, c: (j % length >= length - c_) & (i >= 0)


def grid(width, k):
    """k x k neighbours on rows of `width`, the centre clamped so that border queries keep k keys an axis."""
    def allowed(i, j, c):
        height = -(-c.longest // width)
        inside = True
        for x, y, n in ((i % width, j % width, width), (i // width, j // width, height)):
            start = (x - k // 2).clip(min=0, max=max(n - k, 0))
            inside = (y >= start) & (y < start + k) & inside
        return inside
    return allowed


def axial(width):
    return lambda i, j, c: (i // width == j // width) | (i % width == j % width)


def random_blocks(b):
    return lambda i, j, c: c.blocks[i // b, j // b]


def logsparse():
    def allowed(i, j, c):
        d = i - j
        return (d == 0) | ((d > 0) & ((d & (d - 1)) == 0))
    return allowed


def any_of(*parts):
    def allowed(i, j, c):
        out = parts[0](i, j, c)
        for part in parts[1:]:
            out = out | part(i, j, c)
        return out
    return allowed


def all_of(*parts):
    def allowed(i, j, c):
        out = parts[0](i, j, c)
        for part in parts[1:]:
            out = out & part(i, j, c)
        return out
    return allowed


# ---- The suite ----

def patterns(window_=1024, near=256, dilation=(128, 4), strides=(4, 64), local=128, comb_=16, block=1024, globals_=64,
             bird=64, prefix=1024, sinks=4, width=128, k=13):
    """The 17 patterns with the sizes of the suite at S = 8192; other sizes keep the structure."""
    r, d = dilation
    bird_random = (bird, 3, 0)
    return [
        Pattern("full", "full", full()),
        Pattern("causal", "causal", causal()),
        Pattern(f"causal_window{window_}", f"window({window_ - 1}, 0)", window(window_ - 1, 0)),
        Pattern(f"window{near}", f"window({near})", window(near, near)),
        Pattern(f"dilated_w{r}_d{d}", f"dilated({r}, {d})", dilated(r, d)),
        Pattern(f"strided{strides[0]}", f"strided({strides[0]})", strided(strides[0])),
        Pattern(f"strided{strides[1]}", f"strided({strides[1]})", strided(strides[1])),
        Pattern(f"st_strided{local}", f"causal & (window({local - 1}, 0) | strided({local}))",
                all_of(causal(), any_of(window(local - 1, 0), strided(local)))),
        Pattern(f"st_fixed{local}_{comb_}", f"causal & (blocks({local}) | comb({local}, {comb_}))",
                all_of(causal(), any_of(blocks(local), comb(local, comb_)))),
        Pattern(f"blocked{block}", f"blocks({block})", blocks(block)),
        Pattern(f"longformer{near}_g{globals_}", f"window({near}) | rows(0, {globals_}) | cols(0, {globals_})",
                any_of(window(near, near), rows(0, globals_), cols(0, globals_))),
        Pattern(f"bigbird{bird}", f"banded_blocks({bird},1,1) | rows(0,{2 * bird}) | cols(0,{2 * bird}) | "
                f"random_blocks({bird},3,0)",
                any_of(banded_blocks(bird, 1, 1), rows(0, 2 * bird), cols(0, 2 * bird), random_blocks(bird)),
                bird_random),
        Pattern(f"prefix{prefix}", f"causal | cols(0, {prefix})", any_of(causal(), cols(0, prefix))),
        Pattern(f"sinks{sinks}_w{window_}", f"causal & (window({window_ - 1}, 0) | cols(0, {sinks}))",
                all_of(causal(), any_of(window(window_ - 1, 0), cols(0, sinks)))),
        Pattern(f"na2d_{width}_k{k}", f"grid({width}, {k})", grid(width, k)),
        Pattern(f"axial{width}", f"axial({width})", axial(width)),
        Pattern("logsparse", "logsparse & causal", all_of(logsparse(), causal())),
    ]


SUITE = patterns()
# The same structure with sizes that cut small sequences somewhere inside, none of them a power of two.
SMALL = patterns(window_=100, near=37, dilation=(9, 5), strides=(3, 50), local=48, comb_=7, block=90, globals_=11,
                 bird=24, prefix=70, sinks=3, width=20, k=5)


def shape_of(lib, pattern, q_len, kv_len=None, align=splat_ctypes.BOTTOM_RIGHT, device="cpu"):
    kv_len = q_len if kv_len is None else kv_len
    off = kv_len - q_len if align == splat_ctypes.BOTTOM_RIGHT else 0
    if pattern.random is None:
        return Shape(q_len, kv_len, off)
    import torch
    b, r, seed = pattern.random
    mask = lib.expression(f"random_blocks({b}, {r}, {seed})", q_len, kv_len, align)
    table = [row[::b] for row in mask.rows(range(0, q_len, b))]
    return Shape(q_len, kv_len, off, torch.tensor([list(row) for row in table], dtype=torch.bool, device=device))


def rows_of(pattern, shape, indices, device="cpu"):
    """bool [len(indices), kv_len] of the independent definition."""
    import torch
    i = torch.as_tensor(indices, dtype=torch.int64, device=device)[:, None]
    j = torch.arange(shape.kv_len, dtype=torch.int64, device=device)[None, :]
    return pattern.allowed(i, j, shape).expand(i.shape[0], shape.kv_len)


def count_pairs(pattern, shape, device="cpu", step=1024):
    return sum(int(rows_of(pattern, shape, range(a, min(a + step, shape.q_len)), device).sum())
               for a in range(0, shape.q_len, step))


def mask_mod(pattern, shape):
    """For FlexAttention: (b, h, q, kv) -> bool."""
    return lambda b, h, q, kv: pattern.allowed(q, kv, shape)


def floor_ms(pairs, batch, heads, seq, dim, matmul_flops, copy_bytes, element=2):
    """The larger of useful arithmetic and of q, k, v, o moved once; and which of the two it is."""
    arithmetic = 4.0 * batch * heads * pairs * dim / matmul_flops * 1e3
    memory = 4.0 * batch * heads * seq * dim * element / copy_bytes * 1e3
    return (arithmetic, "arithmetic") if arithmetic >= memory else (memory, "memory")


def geometric_mean(values):
    values = [v for v in values if v]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib")
    parser.add_argument("--seq", type=int, nargs="+", default=[1, 17, 129, 1000, 2048])
    parser.add_argument("--c", action="store_true", help="write names and expressions as rows of a C array")
    args = parser.parse_args()
    if args.c:
        print("".join(f'{{"{p.name}", "{p.expression}"}},\n' for p in SUITE), end="")
        return 0
    import torch
    lib, failed, checked = splat_ctypes.Splat(args.lib), 0, 0
    shapes = [(s, s, splat_ctypes.BOTTOM_RIGHT) for s in args.seq]
    shapes += [(100, 260, splat_ctypes.BOTTOM_RIGHT), (260, 100, splat_ctypes.TOP_LEFT), (1, 300, 0)]
    for q_len, kv_len, align in shapes:
        for pattern in SUITE + SMALL:
            shape = shape_of(lib, pattern, q_len, kv_len, align)
            mask = lib.expression(pattern.expression, q_len, kv_len, align)
            theirs = torch.tensor([list(row) for row in mask.rows(range(q_len))], dtype=torch.bool)
            ours = rows_of(pattern, shape, range(q_len))
            checked += 1
            if not torch.equal(theirs, ours) or mask.pairs() != int(ours.sum()):
                failed += 1
                where = (theirs != ours).nonzero()
                print(f"{pattern.expression} at {q_len} x {kv_len}, align {align}: {len(where)} pairs differ, "
                      f"first {where[0].tolist() if len(where) else 'in the count'}")
    print(f"{checked - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
