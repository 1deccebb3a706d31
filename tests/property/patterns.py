"""The pattern language in NumPy, written from the table in docs/patterns.md, and a Hypothesis strategy for expressions."""

import os

import numpy as np
from hypothesis import settings, strategies as st


def examples(count):
    """So many, the same in every run; with SPLAT_DEEP ten times as many, others in every run."""
    deep = bool(os.environ.get("SPLAT_DEEP"))
    return settings(max_examples=count * (10 if deep else 1), derandomize=not deep)


def grid(q_len, kv_len):
    return np.arange(q_len)[:, None], np.arange(kv_len)[None, :]


def power_of_two(x):
    return (x > 0) & ((x & (x - 1)) == 0)


class Expression:
    """Text, how tightly it binds (0 = |, 1 = -, 2 = &, 3 = the rest), and a function of (i, j, off) giving its truth."""

    def __init__(self, text, level, truth):
        self.text, self.level, self.truth = text, level, truth

    def __repr__(self):
        return self.text

    def array(self, q_len, kv_len, off):
        i, j = grid(q_len, kv_len)
        return np.broadcast_to(self.truth(i, j, off), (q_len, kv_len)).astype(bool)

    def inside(self, level):
        return self.text if self.level >= level else f"({self.text})"


def primitive(text, truth):
    return Expression(text, 3, truth)


def window(l, r):
    return primitive(f"window({l}, {r})", lambda i, j, off: (-l <= j - i - off) & (j - i - off <= r))


def dilated(r, d):
    return primitive(f"dilated({r}, {d})", lambda i, j, off: (abs(i - j) <= r * d) & ((i - j) % d == 0))


def documents(cuts):
    def truth(i, j, off):
        return np.searchsorted(cuts, i, side="right") == np.searchsorted(cuts, j, side="right")

    return truth


def grid_axis(n, x, y, k, d, s):
    """Whether y is a key of x on an axis of n positions."""
    m, number = (n - x % d + d - 1) // d, x // d
    leader = number if s == 1 else np.minimum(number // s * s + s // 2, m - 1)
    start = np.clip(leader - k // 2, 0, np.maximum(m - k, 0))
    return (x % d == y % d) & (start <= y // d) & (y // d < start + np.minimum(k, m))


def swin_axis(n, x, y, m, shift):
    x, y = (x - shift) % n, (y - shift) % n
    wrapped = n - shift % n
    return (x // m == y // m) & ((x >= wrapped) == (y >= wrapped))


def lines(w, i, j):
    """Of a grid w wide that holds all queries and keys."""
    return -(-max(i.size, j.size) // w)


def neighbourhood(w, ky, kx, d, s):
    def truth(i, j, off):
        return grid_axis(lines(w, i, j), i // w, j // w, ky, d, s) & grid_axis(w, i % w, j % w, kx, d, s)

    named = (f", dilation={d}" if d > 1 else "") + (f", stride={s}" if s > 1 else "")
    return primitive(f"grid({w}, {ky}, {kx}{named})", truth)


def swin(w, m, shift):
    def truth(i, j, off):
        return swin_axis(lines(w, i, j), i // w, j // w, m, shift) & swin_axis(w, i % w, j % w, m, shift)

    return primitive(f"swin({w}, {m}, {shift})", truth)


small = st.integers(0, 40)
period = st.integers(1, 40)

primitives = st.one_of(
    st.just(primitive("full", lambda i, j, off: np.bool_(True) | (i == j))),
    st.just(primitive("causal", lambda i, j, off: j <= i + off)),
    st.just(primitive("logsparse", lambda i, j, off: (i == j) | power_of_two(i - j))),
    st.builds(window, small, small),
    st.builds(dilated, st.integers(0, 8), period),
    st.builds(lambda d: primitive(f"strided({d})", lambda i, j, off: (i - j) % d == 0), period),
    st.builds(lambda b: primitive(f"blocks({b})", lambda i, j, off: i // b == j // b), period),
    st.builds(
        lambda b, p, n: primitive(
            f"banded_blocks({b}, {p}, {n})", lambda i, j, off: (-p <= j // b - i // b) & (j // b - i // b <= n)
        ),
        period,
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    st.builds(lambda a, n: primitive(f"rows({a}, {a + n})", lambda i, j, off: (a <= i) & (i < a + n)), small, small),
    st.builds(lambda a, n: primitive(f"cols({a}, {a + n})", lambda i, j, off: (a <= j) & (j < a + n)), small, small),
    st.builds(
        lambda c, more: primitive(f"comb({c + more}, {c})", lambda i, j, off: j % (c + more) >= more),
        st.integers(1, 12),
        small,
    ),
    st.builds(lambda w: primitive(f"axial({w})", lambda i, j, off: (i // w == j // w) | (i % w == j % w)), period),
    st.builds(
        neighbourhood, period, st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 1, 2, 3]), st.integers(1, 3)
    ),
    st.integers(1, 9).flatmap(lambda m: st.builds(swin, period, st.just(m), st.integers(0, m - 1))),
    st.builds(lambda b: primitive(f"checkerboard({b})", lambda i, j, off: (i // b + j // b) % 2 == 0), period),
    st.builds(
        lambda b: primitive(
            f"butterfly({b})", lambda i, j, off: (i // b == j // b) | power_of_two((i // b) ^ (j // b))
        ),
        period,
    ),
    st.builds(
        lambda ds: primitive(
            f"diagonals({', '.join(map(str, sorted(ds)))})", lambda i, j, off: np.isin(i - j, list(ds))
        ),
        st.sets(st.integers(-60, 60), min_size=1, max_size=5),
    ),
)


def combine(children):
    def union(a, b):
        return Expression(
            f"{a.inside(0)} | {b.inside(1)}", 0, lambda i, j, off: a.truth(i, j, off) | b.truth(i, j, off)
        )

    def minus(a, b):
        return Expression(
            f"{a.inside(1)} - {b.inside(2)}", 1, lambda i, j, off: a.truth(i, j, off) & ~b.truth(i, j, off)
        )

    def meet(a, b):
        return Expression(
            f"{a.inside(2)} & {b.inside(3)}", 2, lambda i, j, off: a.truth(i, j, off) & b.truth(i, j, off)
        )

    def invert(a):
        return Expression(f"~{a.inside(3)}", 3, lambda i, j, off: ~a.truth(i, j, off))

    return st.one_of(
        st.builds(union, children, children),
        st.builds(minus, children, children),
        st.builds(meet, children, children),
        st.builds(invert, children),
    )


expressions = st.recursive(primitives, combine, max_leaves=6)
lengths = st.one_of(st.integers(1, 130), st.sampled_from([1, 2, 17, 63, 64, 65, 127, 128, 129, 257]))


@st.composite
def masks(draw, max_len=130):
    """Boolean arrays of many textures; rows without any pair are common."""
    q_len, kv_len = draw(st.integers(1, max_len)), draw(st.integers(1, max_len))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    texture = draw(st.sampled_from(["coin", "sparse", "bands", "strides", "mixed", "empty", "full"]))
    i, j = grid(q_len, kv_len)
    begin = rng.integers(0, kv_len, (q_len, 1))
    end = begin + rng.integers(0, kv_len + 1, (q_len, 1))
    stride = rng.integers(1, 9, (q_len, 1))
    band = (j >= begin) & (j < end)
    kinds = {
        "coin": rng.random((q_len, kv_len)) < 0.5,
        "sparse": rng.random((q_len, kv_len)) < 0.03,
        "bands": band,
        "strides": band & ((j - begin) % stride < rng.integers(1, 4, (q_len, 1))),
        "empty": np.zeros((q_len, kv_len), bool),
        "full": np.ones((q_len, kv_len), bool),
    }
    if texture == "mixed":
        stack = np.stack(list(kinds.values()))
        pick = rng.integers(0, len(kinds), q_len)
        return stack[pick, np.arange(q_len)]
    return np.ascontiguousarray(np.broadcast_to(kinds[texture], (q_len, kv_len)))
