"""One constructor for each primitive of the pattern language.

All take `q_len`, `kv_len` (defaulting to `q_len`) and `align` by name, as `splat.pattern` does; without lengths the pattern
serves any. Query i and key j count from 0, ``/`` is integer division, and ``off`` is ``kv_len - q_len`` for bottom-right
alignment and 0 for top-left. Arguments are checked by the library when the pattern gets its lengths.
"""

from __future__ import annotations

import operator

from ._pattern import Pattern, pattern


def _make(name: str, arguments: str, q_len: int | None, kv_len: int | None, align: str) -> Pattern:
    return pattern(f"{name}({arguments})" if arguments else name, q_len, kv_len, align=align)


def _list(*numbers: int) -> str:
    for n, number in enumerate(numbers):
        if not hasattr(number, "__index__"):
            raise ValueError(f"argument {n + 1} is {type(number).__name__}; it must be an integer (each number is an argument)")
    return ", ".join(str(operator.index(n)) for n in numbers)


def full(*, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """Every pair."""
    return _make("full", "", q_len, kv_len, align)


def causal(*, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """Keys up to the query's own position: ``j <= i + off``."""
    return _make("causal", "", q_len, kv_len, align)


def window(left: int, right: int | None = None, *, q_len: int | None = None, kv_len: int | None = None,
           align: str = "bottom_right") -> Pattern:  # fmt: skip
    """A sliding window: ``-left <= j - i - off <= right``.

    Parameters
    ----------
    left, right : int
        Keys before and after the query, which is inside too; `right` defaults to `left`.
    """
    return _make("window", _list(left, left if right is None else right), q_len, kv_len, align)


def dilated(radius: int, dilation: int, *, q_len: int | None = None, kv_len: int | None = None,
            align: str = "bottom_right") -> Pattern:  # fmt: skip
    """A window with gaps: ``abs(i - j) <= radius * dilation and (i - j) mod dilation == 0``."""
    return _make("dilated", _list(radius, dilation), q_len, kv_len, align)


def strided(stride: int, *, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """Every `stride`-th key: ``(i - j) mod stride == 0``."""
    return _make("strided", _list(stride), q_len, kv_len, align)


def blocks(size: int, *, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """Blocks on the diagonal: ``i / size == j / size``."""
    return _make("blocks", _list(size), q_len, kv_len, align)


def banded_blocks(size: int, before: int, after: int, *, q_len: int | None = None, kv_len: int | None = None,
                  align: str = "bottom_right") -> Pattern:  # fmt: skip
    """A band of blocks: ``-before <= j / size - i / size <= after``."""
    return _make("banded_blocks", _list(size, before, after), q_len, kv_len, align)


def rows(begin: int, end: int, *, q_len: int | None = None, kv_len: int | None = None,
         align: str = "bottom_right") -> Pattern:  # fmt: skip
    """All keys for some queries (global queries): ``begin <= i < end``."""
    return _make("rows", _list(begin, end), q_len, kv_len, align)


def cols(begin: int, end: int, *, q_len: int | None = None, kv_len: int | None = None,
         align: str = "bottom_right") -> Pattern:  # fmt: skip
    """Some keys for all queries (global tokens, sinks): ``begin <= j < end``."""
    return _make("cols", _list(begin, end), q_len, kv_len, align)


def comb(length: int, last: int, *, q_len: int | None = None, kv_len: int | None = None,
         align: str = "bottom_right") -> Pattern:  # fmt: skip
    """The `last` keys of every `length`: ``j mod length >= length - last``."""
    return _make("comb", _list(length, last), q_len, kv_len, align)


def grid(width: int | tuple[int, int, int], *kernel: int, dilation: int | None = None, stride: int | None = None,
         q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:  # fmt: skip
    """A neighbourhood on a grid of tokens in raster order, clamped at the border.

    On an axis of n positions, query x has the ``min(k, n)`` keys from ``clamp(x - k / 2, 0, n - k)``. docs/patterns.md has
    the formula with dilation and stride.

    Parameters
    ----------
    width : int or (int, int, int)
        Columns of a two-dimensional grid; or (depth, height, width) of a three-dimensional one.
    *kernel : int
        Keys on each axis, slowest axis first (ky, kx or kz, ky, kx); in two dimensions one number means both.
    dilation : int, optional
        Neighbours lie `dilation` positions apart.
    stride : int, optional
        Groups of `stride` queries share their leader's neighbourhood.
    """
    named = [
        f"{name}={operator.index(value)}" for name, value in (("dilation", dilation), ("stride", stride)) if value is not None
    ]
    if isinstance(width, tuple):
        text = f"{_list(*width)}; {_list(*kernel)}"
    else:
        text = _list(width, *kernel)
    return _make("grid", ", ".join([text, *named]), q_len, kv_len, align)


def swin(width: int, size: int, shift: int, *, q_len: int | None = None, kv_len: int | None = None,
         align: str = "bottom_right") -> Pattern:  # fmt: skip
    """Shifted windows: same `size` x `size` window of a `width`-wide grid after rolling by `shift`, and same region."""
    return _make("swin", _list(width, size, shift), q_len, kv_len, align)


def axial(width: int, *, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """Same row or same column of a `width`-wide grid: ``i / width == j / width or i mod width == j mod width``."""
    return _make("axial", _list(width), q_len, kv_len, align)


def documents(*lengths: int, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """Query and key in the same document of a packed sequence.

    Parameters
    ----------
    *lengths : int
        Lengths of the documents; they add up to the longer of `q_len` and `kv_len`.
    """
    return _make("documents", _list(*lengths), q_len, kv_len, align)


def random_blocks(size: int, count: int, seed: int, *, q_len: int | None = None, kv_len: int | None = None,
                  align: str = "bottom_right") -> Pattern:  # fmt: skip
    """For each row of `size`-wide blocks, `count` distinct block columns, drawn by a fixed generator from `seed`."""
    return _make("random_blocks", _list(size, count, seed), q_len, kv_len, align)


def diagonals(*offsets: int, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """Some diagonals: ``i - j`` is one of `offsets`; negative ones look ahead."""
    return _make("diagonals", _list(*offsets), q_len, kv_len, align)


def logsparse(*, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """``i - j`` is 0 or a power of two."""
    return _make("logsparse", "", q_len, kv_len, align)


def butterfly(size: int, *, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """With I = i / size and J = j / size: ``I == J``, or ``I xor J`` is a power of two."""
    return _make("butterfly", _list(size), q_len, kv_len, align)


def checkerboard(size: int, *, q_len: int | None = None, kv_len: int | None = None, align: str = "bottom_right") -> Pattern:
    """``(i / size + j / size)`` is even."""
    return _make("checkerboard", _list(size), q_len, kv_len, align)


def kron(a: int, b: int, c: int, d: int) -> Pattern:
    """The support of ``I_a x ones(b, c) x I_d``: ``a * b * d`` rows, ``a * c * d`` columns; a butterfly or Monarch factor."""
    return _make("kron", _list(a, b, c, d), a * b * d, a * c * d, "bottom_right")
