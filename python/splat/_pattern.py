"""Masks as Python objects: patterns, their algebra, and what they tell about themselves.

A pattern is immutable. Its `key` is a text that determines its pairs (the expression, or a hash of the data), so that a
compiled function that holds the key finds, or makes again, the same mask. Sizes are counted in rows and columns.
"""

from __future__ import annotations

import ctypes as C
import dataclasses
import hashlib
import re
import threading
import weakref
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from . import _picture
from ._library import (
    ALIGNMENTS, ARCHS, DEVICES, DIFFERENCE, DTYPES, INTERSECTION, UNION, AcsrRun, Handle, Options, PlanInfo, check, choice,
    dump, lib, make_options,
)  # fmt: skip

_KEPT_LENGTHS = 64  # bound patterns that an unbound one keeps
_BAND_PAIRS = 1 << 22  # pairs that are looked at together when a function or an array is read

# Every mask that is alive, by key: compiled code holds keys. Keys of expressions need no entry.
_alive: "weakref.WeakValueDictionary[str, Mask]" = weakref.WeakValueDictionary()


_tables_lock = threading.Lock()


def remember(table: dict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """Puts an entry into a table; beyond `limit` the oldest goes."""
    with _tables_lock:
        while len(table) >= limit:
            table.pop(next(iter(table)))
        table[key] = value


def _bound_lengths(q_len: Any, kv_len: Any) -> tuple[int, int]:
    q_len = int(q_len)
    return q_len, q_len if kv_len is None else int(kv_len)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to compute a mask that was considered.

    Attributes
    ----------
    summary : str
        Kernel, view, tile shape and tile counts.
    reason : str
        ``"chosen"``, or why it lost.
    predicted_us : float
        Predicted time of one launch, microseconds.
    """

    summary: str
    reason: str
    predicted_us: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a mask will be computed, and why; ``str(plan)`` says it in words.

    Attributes
    ----------
    q_len, kv_len : int
        Rows (queries) and columns (keys) of the mask.
    masks : int
        Distinct masks of a map; else 1.
    allowed_pairs, computed_pairs : int
        Allowed (query, key) pairs, and pairs in computed tiles.
    full_tiles, partial_tiles : int
        Tiles that run without and with masking code.
    passes, families : int
        Passes over the rows; families of rows in the mask's affine form.
    tile_rows, tile_cols : int
        Tile shape, rows x columns.
    descriptor_bytes : int
        Size of the tables that go to the device.
    density : float
        Allowed share of all pairs.
    waste : float
        ``computed_pairs / allowed_pairs``; 0 when nothing is allowed.
    plan_ms : float
        Time that analysis and planning took, milliseconds.
    predicted_us : float
        Predicted time of one launch, microseconds.
    candidates : tuple of Candidate
        In ascending predicted time; the first is the chosen one.
    """

    q_len: int
    kv_len: int
    masks: int
    allowed_pairs: int
    computed_pairs: int
    full_tiles: int
    partial_tiles: int
    passes: int
    families: int
    tile_rows: int
    tile_cols: int
    descriptor_bytes: int
    density: float
    waste: float
    plan_ms: float
    predicted_us: float
    candidates: tuple[Candidate, ...]
    subject: str = dataclasses.field(default="", repr=False)

    def __str__(self) -> str:
        lines = [
            f"{self.subject}: {self.q_len} x {self.kv_len}, density {self.density:.4g}, "
            f"{self.families} famil{'y' if self.families == 1 else 'ies'} of rows",
            f"tiles of {self.tile_rows} x {self.tile_cols}: {self.full_tiles} full + {self.partial_tiles} partial; "
            f"{self.computed_pairs} pairs computed for {self.allowed_pairs} allowed (waste {self.waste:.3g})",
            f"predicted: {self.predicted_us:.1f} us a launch; planned in {self.plan_ms:.2f} ms",
        ]
        lines += [f"  {c.summary}: {c.reason}" for c in self.candidates]
        return "\n".join(lines)


class Mask:
    """What attention takes as a mask: a `Pattern`, or a `PatternMap` with one pattern for each (batch, head).

    Attributes
    ----------
    q_len, kv_len : int or None
        Rows (queries) and columns (keys); None for a pattern that serves any lengths.
    key : str
        Text that determines the allowed pairs, together with the lengths.
    """

    q_len: int | None
    kv_len: int | None
    key: str
    map_batch: int = 1
    map_heads: int = 1

    def __init__(self, key: str, q_len: int | None, kv_len: int | None, handle: Handle | None) -> None:
        self.key, self.q_len, self.kv_len = key, q_len, kv_len
        self._handle = handle
        self._kernels: dict[Any, Any] = {}  # of _kernels.py
        self._launches: dict[Any, Any] = {}  # of torch.py
        if not key.startswith("expression:"):
            _alive[key] = self

    # ---- Lengths ----

    @property
    def bound(self) -> bool:
        """Whether the pattern has its lengths."""
        return self.q_len is not None

    def at(self, q_len: int, kv_len: int | None = None) -> "Mask":
        """This mask with the given lengths; `kv_len` defaults to `q_len`.

        Raises
        ------
        ValueError
            When the mask has other lengths already, or its expression does not fit these.
        """
        q_len, kv_len = _bound_lengths(q_len, kv_len)
        if (q_len, kv_len) == (self.q_len, self.kv_len):
            return self
        raise ValueError(f"the mask is {self.q_len} x {self.kv_len}; q_len x kv_len is {q_len} x {kv_len}")

    def _pointer(self) -> int:
        """Address of the splat_mask."""
        if self._handle is None:
            raise ValueError(f"{self!r} has no lengths yet; give them with .at(q_len, kv_len)")
        assert self._handle.value is not None
        return self._handle.value

    # ---- Equality: the same text or data, so that masks can be static arguments of compiled functions ----

    def _identity(self) -> tuple[Any, ...]:
        return self.key, self.q_len, self.kv_len

    def __eq__(self, other: object) -> bool:
        """Whether both were made from the same text or data. `same_pairs` compares what is allowed."""
        return self._identity() == other._identity() if isinstance(other, Mask) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    # ---- Plans and source ----

    def _options(self, head_dim: int, value_dim: int | None, batch: int, heads: int, kv_heads: int | None, dtype: str,
                 device: str, arch: str, tile: tuple[int, int], layout: int) -> Options:  # fmt: skip
        return make_options(
            dtype=choice("dtype", dtype, DTYPES), device=choice("device", device, DEVICES), arch=choice("arch", arch, ARCHS),
            head_dim=head_dim, value_dim=value_dim or 0, batch=batch, heads=heads, kv_heads=kv_heads or 0,
            tile_rows=tile[0], tile_cols=tile[1], layout=layout,
        )  # fmt: skip

    def explain(self, *, head_dim: int = 64, value_dim: int | None = None, batch: int = 1, heads: int = 1,
                kv_heads: int | None = None, dtype: str = "bfloat16", device: str = "auto", arch: str = "auto",
                tile: tuple[int, int] = (0, 0), layout: int = 0) -> Plan:  # fmt: skip
        """The plan for this mask: tiles, predicted time, and the candidates that lost. Needs no GPU.

        Parameters
        ----------
        head_dim, value_dim : int
            Elements of a query or key, and of a value (`head_dim` when None).
        batch, heads, kv_heads : int
            What the cost model expects to be run.
        dtype : {"bfloat16", "float16", "float32"}
        device : {"auto", "cpu", "gpu"}
        arch : {"auto", "sm_80", "sm_90a"}
            Chip to plan for; ``"auto"`` is the GPU of this machine, or sm_90a.
        tile : (int, int)
            Rows and columns to force; (0, 0) chooses.
        layout : int
            How the mask is laid out in views and passes: 0 chooses, 1 is token order, more are others that the mask suggests.

        Returns
        -------
        Plan
            ``print`` it for words.
        """
        options = self._options(head_dim, value_dim, batch, heads, kv_heads, dtype, device, arch, tile, layout)
        plan = Handle("plan", lib.splat_plan_create, self._pointer(), C.byref(options))
        info = PlanInfo()
        lib.splat_plan_info_init(C.byref(info))
        check(lib.splat_plan_get_info(plan.value, C.byref(info)))
        fields = {
            name: getattr(info, name) for name, _ in PlanInfo._fields_ if name not in ("struct_size", "candidates", "room")
        }
        candidates = []
        summary, reason, predicted = C.c_char_p(), C.c_char_p(), C.c_double()
        for index in range(info.candidates):
            arguments = (plan.value, index, C.byref(summary), C.byref(reason), C.byref(predicted))
            if lib.splat_plan_candidate(*arguments):
                break  # the plan keeps fewer than it considered
            candidates.append(Candidate((summary.value or b"").decode(), (reason.value or b"").decode(), predicted.value))
        return Plan(candidates=tuple(candidates), subject=self._title(), **fields)

    def cuda_source(self, *, head_dim: int = 64, value_dim: int | None = None, batch: int = 1, heads: int = 1,
                    kv_heads: int | None = None, dtype: str = "bfloat16", arch: str = "auto",
                    tile: tuple[int, int] = (0, 0), layout: int = 0) -> str:  # fmt: skip
        """The exact CUDA text that would be compiled for this mask. Parameters as in `explain`."""
        options = self._options(head_dim, value_dim, batch, heads, kv_heads, dtype, "auto", arch, tile, layout)
        return dump(self._pointer(), options, "source")

    def _title(self) -> str:
        raise NotImplementedError

    @property
    def density(self) -> float:
        """Allowed share of all pairs, from 0 to 1."""
        raise NotImplementedError


class Pattern(Mask):
    """A set of (query i, key j) pairs that may attend, both counted from 0.

    Made by `splat.pattern`, by the constructors of primitives (`splat.causal`, `splat.window`, ...) or from data
    (`splat.from_dense`, ...). ``a & b``, ``a | b``, ``a - b`` and ``~a`` are intersection, union, difference and
    complement. A pattern made of expressions may be without lengths: attention then takes them from its arguments.
    """

    def __init__(self, key: str, q_len: int | None, kv_len: int | None, handle: Handle | None, *, text: str | None = None,
                 level: int = 3, align: str = "bottom_right", origin: str = "") -> None:  # fmt: skip
        super().__init__(key, q_len, kv_len, handle)
        self.text = text
        self.align = align
        self._level = level
        self._origin = origin
        self._acsr_handle: Handle | None = None
        self._at: dict[tuple[int, int], Pattern] = {}

    # ---- Copies ----

    def __copy__(self) -> "Pattern":
        return self  # it never changes

    def __deepcopy__(self, memo: Any) -> "Pattern":
        return self

    def __reduce__(self) -> Any:
        if self.text is None:
            raise TypeError(f"{self!r} was made from data and cannot be pickled; pickle the data")
        return _expression, (self.text, self._level, self.q_len, self.kv_len, self.align)

    # ---- Lengths ----

    def at(self, q_len: int, kv_len: int | None = None) -> "Pattern":
        if self.bound:
            super().at(q_len, kv_len)
            return self
        q_len, kv_len = _bound_lengths(q_len, kv_len)
        found = self._at.get((q_len, kv_len))
        if found is None:
            assert self.text is not None
            found = _expression(self.text, self._level, q_len, kv_len, self.align)
            remember(self._at, (q_len, kv_len), found, _KEPT_LENGTHS)
        return found

    # ---- Algebra ----

    def _combine(self, other: object, operator: str) -> "Pattern":
        if not isinstance(other, Pattern):
            return NotImplemented
        a, b = self, other
        if a.text is not None and b.text is not None and a.align == b.align:
            lengths = [(p.q_len, p.kv_len) for p in (a, b) if p.bound]
            if len(lengths) < 2 or lengths[0] == lengths[1]:
                level = {"|": 0, "-": 1, "&": 2}[operator]
                text = f"{a._inside(level)} {operator} {b._inside(level + 1)}"
                q_len, kv_len = lengths[0] if lengths else (None, None)
                return _expression(text, level, q_len, kv_len, a.align)
        if not a.bound and b.bound:
            a = a.at(b.q_len, b.kv_len)  # type: ignore[arg-type]
        elif a.bound and not b.bound:
            b = b.at(a.q_len, a.kv_len)  # type: ignore[arg-type]
        elif not a.bound:
            raise ValueError(f"{a!r} and {b!r} have different alignments; they can be combined once both have lengths")
        number = {"|": UNION, "&": INTERSECTION, "-": DIFFERENCE}[operator]
        return _of_acsr(
            Handle("acsr", lib.splat_acsr_combine, a._acsr(), number, b._acsr()),
            f"{a._identity()} {operator} {b._identity()}", a.q_len, a.kv_len, f"{a._short()} {operator} {b._short()}",
        )  # fmt: skip

    def __and__(self, other: "Pattern") -> "Pattern":
        return self._combine(other, "&")

    def __or__(self, other: "Pattern") -> "Pattern":
        return self._combine(other, "|")

    def __sub__(self, other: "Pattern") -> "Pattern":
        return self._combine(other, "-")

    def __invert__(self) -> "Pattern":
        if self.text is not None:
            return _expression(f"~{self._inside(3)}", 3, self.q_len, self.kv_len, self.align)
        return _of_acsr(
            Handle("acsr", lib.splat_acsr_complement, self._acsr()), f"~ {self._identity()}", self.q_len, self.kv_len,
            f"~{self._short()}",
        )  # fmt: skip

    def _inside(self, level: int) -> str:
        assert self.text is not None
        return self.text if self._level >= level else f"({self.text})"

    # ---- The affine form ----

    def _acsr(self) -> int:
        if self._acsr_handle is None:
            self._acsr_handle = Handle("acsr", lib.splat_acsr_create, self._pointer())
        assert self._acsr_handle.value is not None
        return self._acsr_handle.value

    @property
    def pairs(self) -> int:
        """How many pairs are allowed."""
        return lib.splat_acsr_pairs(self._acsr())

    @property
    def families(self) -> int:
        """How many families the rows fall into; regular masks have few, whatever their lengths."""
        return lib.splat_acsr_families(self._acsr())

    @property
    def density(self) -> float:
        pairs = self.pairs
        assert self.q_len is not None and self.kv_len is not None
        return pairs / (self.q_len * self.kv_len)

    def row(self, i: int) -> list[tuple[int, int, int, int]]:
        """The affine runs of row `i`: ``(start, stride, count, width)``, `count` blocks of `width` columns."""
        count = C.c_int64()
        check(lib.splat_acsr_row(self._acsr(), i, None, 0, C.byref(count)))
        runs = (AcsrRun * max(1, count.value))()
        check(lib.splat_acsr_row(self._acsr(), i, runs, count.value, C.byref(count)))
        return [(r.start, r.stride, r.count, r.width) for r in runs[: count.value]]

    def _expanded_row(self, i: int) -> np.ndarray:
        assert self.kv_len is not None
        row = np.empty(self.kv_len, np.uint8)
        check(lib.splat_acsr_expand_row(self._acsr(), i, row.ctypes.data))
        return row

    def to_dense(self) -> np.ndarray:
        """The mask as a bool array [q_len, kv_len], True = allowed."""
        acsr = self._acsr()
        assert self.q_len is not None and self.kv_len is not None
        out = np.empty((self.q_len, self.kv_len), np.uint8)
        address, expand = out.ctypes.data, lib.splat_acsr_expand_row
        for i in range(self.q_len):
            check(expand(acsr, i, address + i * self.kv_len))
        return out.view(np.bool_)

    def row_offsets(self) -> np.ndarray:
        """Where each row's values begin, and the end of the last: int64 [q_len + 1]. Values are in the order of CSR."""
        acsr = self._acsr()
        assert self.q_len is not None
        offsets = np.empty(self.q_len + 1, np.int64)
        check(lib.splat_acsr_row_offsets(acsr, offsets.ctypes.data))
        return offsets

    def to_csr(self) -> tuple[np.ndarray, np.ndarray]:
        """``(indptr, indices)``, int64, indices ascending in each row; ``from_csr(indptr, indices, kv_len)`` is the way back."""
        acsr = self._acsr()
        assert self.q_len is not None
        indptr, indices = np.empty(self.q_len + 1, np.int64), np.empty(max(self.pairs, 1), np.int64)
        check(lib.splat_acsr_to_csr(acsr, indptr.ctypes.data, indices.ctypes.data))
        return indptr, indices[: self.pairs]

    def transposed(self) -> "Pattern":
        """The pattern [kv_len, q_len] that allows (j, i) where this one allows (i, j)."""
        made = Handle("acsr", lib.splat_acsr_transpose, self._acsr())
        return _of_acsr(made, f"T {self._identity()}", self.kv_len, self.q_len, f"transpose of {self._short()}")

    def same_pairs(self, other: "Pattern") -> bool:
        """Whether both allow exactly the same pairs, whatever they were made from."""
        if (self.q_len, self.kv_len) != (other.q_len, other.kv_len):
            return False
        return bool(lib.splat_acsr_equal(self._acsr(), other._acsr()))

    # ---- Showing itself ----

    def _short(self) -> str:
        return f"({self.text})" if self.text is not None else self._origin

    def _title(self) -> str:
        return self.text if self.text is not None else self._origin

    def __repr__(self) -> str:
        made = repr(self.text) if self.text is not None else self._origin
        lengths = f", {self.q_len} x {self.kv_len}" if self.bound else ""
        align = "" if self.align == "bottom_right" else f", align={self.align!r}"
        return f"splat.Pattern({made}{lengths}{align})"

    def picture(self, size: int = 256) -> np.ndarray:
        """Shares of allowed pairs, [height, width] floats from 0 to 1 with at most `size` of each.

        Of longer masks some rows of each cell are looked at, all columns.
        """
        self._pointer()
        assert self.q_len is not None and self.kv_len is not None
        return _picture.shares(self.q_len, self.kv_len, self._expanded_row, size)

    def _repr_png_(self) -> bytes | None:
        return _picture.png(self.picture()) if self.bound else None

    def plot(self, ax: Any = None, size: int = 512) -> Any:
        """Draws the mask with matplotlib, query rows downwards; returns the axes.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure when None.
        size : int
            Largest number of cells on each side.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            raise ImportError("plot() draws with matplotlib, which is not installed; picture() gives the numbers") from None
        picture = self.picture(size)
        ax = ax if ax is not None else plt.subplots()[1]
        ax.imshow(picture, cmap="Blues", vmin=0, vmax=1, extent=(0, self.kv_len, self.q_len, 0), interpolation="nearest")
        ax.set(xlabel="key j", ylabel="query i", title=f"{self._title()}\ndensity {self.density:.3g}")
        return ax


class PatternMap(Mask):
    """One pattern for each (batch, head); made by `splat.per_head` and `splat.pattern_map`.

    Attributes
    ----------
    map_batch, map_heads : int
        Entries along batch and heads; 1 serves any number.
    """

    def __init__(self, entries: Sequence[Sequence[Pattern]]) -> None:
        self.map_batch, self.map_heads = len(entries), len(entries[0]) if entries else 0
        entries = [[_by_text(text_key(e)) if isinstance(e, str) else e for e in row] for row in entries]
        flat = [entry for row in entries for entry in row]
        if not flat or any(len(row) != self.map_heads for row in entries):
            raise ValueError(
                f"the rows of a pattern map have {[len(row) for row in entries]} entries; it needs at least one row, and rows "
                "of one length, at least 1"
            )
        for n, entry in enumerate(flat):
            if not isinstance(entry, Pattern):
                raise ValueError(
                    f"entry {n} of the pattern map is {type(entry).__name__}; it must be a Pattern or the text of an "
                    "expression"
                )
        self._entries = tuple(tuple(row) for row in entries)
        self._at: dict[tuple[int, int], PatternMap] = {}
        lengths = {(p.q_len, p.kv_len) for p in flat if p.bound}
        handle = None
        if lengths:
            q_len, kv_len = min(lengths)  # type: ignore[type-var]
            flat = [p if p.bound else p.at(q_len, kv_len) for p in flat]  # type: ignore[arg-type]
            pointers = (C.c_void_p * len(flat))(*[p._pointer() for p in flat])
            handle = Handle("mask", lib.splat_mask_map, pointers, self.map_batch, self.map_heads)
        else:
            q_len = kv_len = None
        parts = repr([p._identity() for p in flat] + [self.map_batch, self.map_heads, flat[0].align])
        super().__init__(f"map:{hashlib.sha256(parts.encode()).hexdigest()}", q_len, kv_len, handle)

    def at(self, q_len: int, kv_len: int | None = None) -> "PatternMap":
        if self.bound:
            super().at(q_len, kv_len)
            return self
        q_len, kv_len = _bound_lengths(q_len, kv_len)
        found = self._at.get((q_len, kv_len))
        if found is None:
            found = PatternMap([[p.at(q_len, kv_len) for p in row] for row in self._entries])
            remember(self._at, (q_len, kv_len), found, _KEPT_LENGTHS)
        return found

    def tiled(self, times: int) -> "PatternMap":
        """The map for `times` as many batch entries: entry b becomes entries b, b + batch, ..."""
        return PatternMap(self._entries * times) if self.map_batch > 1 else self

    def __getitem__(self, index: tuple[int, int]) -> Pattern:
        batch, head = index
        entry = self._entries[batch][head]
        return entry.at(self.q_len, self.kv_len) if self.bound else entry  # type: ignore[arg-type]

    @property
    def density(self) -> float:
        """Allowed share of all pairs, over all entries."""
        self._pointer()
        shares = [self[b, h].density for b in range(self.map_batch) for h in range(self.map_heads)]
        return sum(shares) / len(shares)

    def to_dense(self) -> np.ndarray:
        """Bool array [map_batch, map_heads, q_len, kv_len], True = allowed."""
        self._pointer()
        return np.stack([[self[b, h].to_dense() for h in range(self.map_heads)] for b in range(self.map_batch)])

    def _title(self) -> str:
        return f"map of {self.map_batch} x {self.map_heads} patterns"

    def __repr__(self) -> str:
        lengths = f", {self.q_len} x {self.kv_len}" if self.bound else ""
        return f"splat.PatternMap({self.map_batch} x {self.map_heads} entries{lengths})"


# ---- Making patterns ----


def _expression(text: str, level: int, q_len: int | None, kv_len: int | None, align: str) -> Pattern:
    number = choice("align", align, ALIGNMENTS)
    handle = None
    if q_len is not None:
        assert kv_len is not None
        handle = Handle("mask", lib.splat_mask_from_expression, text.encode(), q_len, kv_len, number)
    lengths = "" if q_len is None else f"{q_len}x{kv_len}"
    return Pattern(f"expression:{align}:{lengths}:{text}", q_len, kv_len, handle, text=text, level=level, align=align)


def _of_acsr(acsr: Handle, parts: str, q_len: int | None, kv_len: int | None, origin: str) -> Pattern:
    handle = Handle("mask", lib.splat_mask_from_acsr, acsr.value)
    key = f"combined:{hashlib.sha256(parts.encode()).hexdigest()}"
    made = Pattern(key, q_len, kv_len, handle, origin=origin if len(origin) <= 120 else origin[:117] + "...")
    made._acsr_handle = acsr
    return made


def pattern(expression: str, q_len: int | None = None, kv_len: int | None = None, *,
            align: str = "bottom_right") -> Pattern:  # fmt: skip
    """A pattern from an expression of the pattern language, such as ``"causal & window(1023, 0)"``.

    Parameters
    ----------
    expression : str
        Primitives combined by ``~ & - |`` (tightest first); `splat.pattern_help` lists them.
    q_len, kv_len : int, optional
        Rows (queries) and columns (keys). `kv_len` defaults to `q_len`. Without lengths the pattern serves any: attention
        takes them from its arguments.
    align : {"bottom_right", "top_left"}
        Where the diagonal of `causal` and `window` lies when the lengths differ: the last query faces the last key, or the
        first the first.

    Raises
    ------
    ValueError
        With the column, what was found and what was expected. Without lengths, when lengths are given later.
    """
    if not isinstance(expression, str):
        raise ValueError(f"expression is {type(expression).__name__}; it must be a str")
    if q_len is None:
        if kv_len is not None:
            raise ValueError("kv_len is given without q_len; give both, or q_len alone, or neither")
        lengths: tuple[int | None, int | None] = (None, None)
    else:
        lengths = _bound_lengths(q_len, kv_len)
    simple = re.fullmatch(r"\s*\w+\s*(\([^()]*\))?\s*", expression)
    return _expression(expression, 3 if simple else 0, *lengths, align)


def pattern_help() -> str:
    """The table of primitives with their formulas, as text."""
    return lib.splat_pattern_help().decode()


def _bool_array(name: str, array: Any, dims: Iterable[int]) -> np.ndarray:
    array = np.asarray(array)
    if array.ndim not in dims:
        raise ValueError(f"{name} has {array.ndim} {'axis' if array.ndim == 1 else 'axes'}; it must have {' or '.join(map(str, dims))}")
    if array.dtype != np.bool_ and array.dtype.kind not in "iu":
        raise ValueError(f"{name} has dtype {array.dtype}; it must be bool, or integers of which 0 means not allowed")
    return array.astype(np.bool_, copy=False)


def _dense(array: np.ndarray) -> Pattern:
    array = np.ascontiguousarray(array)
    q_len, kv_len = array.shape
    digest = hashlib.sha256(b"%d %d " % (q_len, kv_len))
    if array.size:
        band = max(1, _BAND_PAIRS // kv_len)
        for first in range(0, q_len, band):
            digest.update(np.packbits(array[first : first + band], axis=1))
    handle = Handle("mask", lib.splat_mask_from_bytes, array.ctypes.data, q_len, kv_len, kv_len)
    return Pattern(f"dense:{digest.hexdigest()}", q_len, kv_len, handle, origin="from_dense(...)")


def from_dense(array: Any) -> Mask:
    """A mask from an array of True (allowed) and False.

    Parameters
    ----------
    array : array_like
        Bool, or integers of which 0 means not allowed. [q_len, kv_len]; [heads, q_len, kv_len] gives a map with one pattern
        a head, [batch, heads, q_len, kv_len] one for each (batch, head). It is read once and not kept.

    Returns
    -------
    Pattern or PatternMap
    """
    if hasattr(array, "tocsr"):
        raise ValueError(f"array is a sparse {type(array).__name__}; from_csr takes it")
    array = _bool_array("array", array, (2, 3, 4))
    if array.ndim == 2:
        return _dense(array)
    stack = array if array.ndim == 4 else array[None]
    return PatternMap([[_dense(entry) for entry in row] for row in stack])


def from_blocks(blocks: Any, block_size: int | tuple[int, int], q_len: int | None = None,
                kv_len: int | None = None) -> Pattern:  # fmt: skip
    """A pattern from a mask of blocks: (i, j) is allowed where ``blocks[i // rows, j // cols]``.

    Parameters
    ----------
    blocks : array_like
        Bool or integer [ceil(q_len / rows), ceil(kv_len / cols)].
    block_size : int or (int, int)
        Rows and columns of a block; one number means both.
    q_len, kv_len : int, optional
        Lengths; by default all blocks are whole.
    """
    blocks = np.ascontiguousarray(_bool_array("blocks", blocks, (2,)))
    rows, cols = (block_size, block_size) if isinstance(block_size, int) else block_size
    q_len = blocks.shape[0] * rows if q_len is None else int(q_len)
    kv_len = blocks.shape[1] * cols if kv_len is None else int(kv_len)
    if rows >= 1 and cols >= 1 and blocks.shape != (-(-q_len // rows), -(-kv_len // cols)):
        raise ValueError(
            f"blocks is {blocks.shape[0]} x {blocks.shape[1]}; for {q_len} x {kv_len} in blocks of {rows} x {cols} it must be "
            f"{-(-q_len // rows)} x {-(-kv_len // cols)}"
        )
    handle = Handle("mask", lib.splat_mask_from_blocks, blocks.ctypes.data, q_len, kv_len, rows, cols, max(1, blocks.shape[1]))
    digest = hashlib.sha256(b"%d %d %d %d " % (q_len, kv_len, rows, cols))
    digest.update(blocks)
    return Pattern(f"blocks:{digest.hexdigest()}", q_len, kv_len, handle, origin=f"from_blocks(..., {rows} x {cols})")


def from_csr(matrix: Any, indices: Any = None, kv_len: int | None = None) -> Pattern:
    """A pattern from compressed sparse rows.

    Parameters
    ----------
    matrix : scipy sparse array or matrix, or array_like of int
        A SciPy sparse array of any format: its non-zero entries are allowed. Or `indptr`, q_len + 1 numbers, with `indices`.
    indices : array_like of int, optional
        ``indices[indptr[i]:indptr[i + 1]]`` are the columns of row i, in any order, without repeats.
    kv_len : int, optional
        Number of columns; required with `indices`.
    """
    if indices is None:
        if not hasattr(matrix, "tocsr"):
            raise ValueError(f"matrix is {type(matrix).__name__}; it must be a SciPy sparse array, or give indptr and indices")
        csr = matrix.tocsr().copy()
        csr.sum_duplicates()
        csr.eliminate_zeros()
        if kv_len is not None and kv_len != csr.shape[1]:
            raise ValueError(f"kv_len is {kv_len}; the matrix has {csr.shape[1]} columns")
        indptr, indices, kv_len = csr.indptr, csr.indices, csr.shape[1]
    else:
        indptr = np.asarray(matrix)
        if kv_len is None:
            raise ValueError("kv_len is missing; indptr and indices do not tell the number of columns")
    indptr, indices = (np.ascontiguousarray(x, np.int64) for x in (indptr, indices))
    if indptr.ndim != 1 or indices.ndim != 1 or len(indptr) < 2:
        raise ValueError(
            f"indptr has shape {indptr.shape} and indices {indices.shape}; both must have one axis, and indptr q_len + 1 "
            "entries"
        )
    if indptr[0] != 0 or indptr[-1] != len(indices) or np.any(np.diff(indptr) < 0):
        raise ValueError(
            f"indptr goes from {indptr[0]} to {indptr[-1]}; it must rise from 0 to {len(indices)}, the number of indices"
        )
    q_len = len(indptr) - 1
    handle = Handle(
        "mask", lib.splat_mask_from_csr, indptr.ctypes.data, indices.ctypes.data if len(indices) else None, q_len, kv_len
    )
    digest = hashlib.sha256(b"%d %d " % (q_len, kv_len))
    digest.update(indptr)
    digest.update(indices)
    return Pattern(f"csr:{digest.hexdigest()}", q_len, int(kv_len), handle, origin=f"from_csr(..., {len(indices)} entries)")


def from_function(function: Callable[[np.ndarray, np.ndarray], Any], q_len: int, kv_len: int | None = None) -> Pattern:
    """A pattern from a function of index arrays.

    Parameters
    ----------
    function : callable
        ``function(i, j)`` with int64 arrays i [n, 1] and j [1, kv_len] returns bool that broadcasts to [n, kv_len]. It is
        called for bands of rows, now, and not kept.
    q_len, kv_len : int
        Lengths; `kv_len` defaults to `q_len`.

    Examples
    --------
    >>> splat.from_function(lambda i, j: (i - j) % 3 == 0, 9).density
    0.3333333333333333
    """
    q_len, kv_len = _bound_lengths(q_len, kv_len)
    if q_len < 1 or kv_len < 1:
        return _dense(np.empty((max(q_len, 0), max(kv_len, 0)), np.bool_))  # the library's own sentence
    bits = np.empty((q_len, -(-kv_len // 8)), np.uint8)
    columns = np.arange(kv_len, dtype=np.int64)[None, :]
    band = max(1, _BAND_PAIRS // kv_len)
    for first in range(0, q_len, band):
        rows = np.arange(first, min(first + band, q_len), dtype=np.int64)[:, None]
        allowed = np.asarray(function(rows, columns))
        if allowed.dtype != np.bool_:
            raise ValueError(f"the function returned dtype {allowed.dtype}; it must be bool")
        try:
            allowed = np.broadcast_to(allowed, (len(rows), kv_len))
        except ValueError:
            raise ValueError(
                f"the function returned shape {allowed.shape}; it must broadcast to ({len(rows)}, {kv_len})"
            ) from None
        bits[first : first + len(rows)] = np.packbits(allowed, axis=1, bitorder="little")
    return _of_bits(bits, q_len, kv_len, f"from_function({getattr(function, '__name__', '...')})")


def _of_bits(bits: np.ndarray, q_len: int, kv_len: int, origin: str) -> Pattern:
    handle = Handle("mask", lib.splat_mask_from_bits, bits.ctypes.data, q_len, kv_len, bits.shape[1])
    digest = hashlib.sha256(b"%d %d " % (q_len, kv_len))
    digest.update(bits)
    return Pattern(f"bits:{digest.hexdigest()}", q_len, kv_len, handle, origin=origin)


def per_head(patterns: Sequence[Pattern]) -> PatternMap:
    """A map with one pattern for each head, the same for every batch entry."""
    return PatternMap([list(patterns)])


def pattern_map(patterns: Sequence[Sequence[Pattern]]) -> PatternMap:
    """A map from nested sequences: ``patterns[b][h]``. One row serves every batch entry, rows of one entry every head."""
    return PatternMap([list(row) for row in patterns])


_texts: dict[str, Pattern] = {}
_KEPT_TEXTS = 256


def as_mask(mask: Any) -> Mask:
    """What attention was given as a mask: a `Mask`, or the text of an expression."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, str):
        return _by_text(text_key(mask))
    raise ValueError(
        f"mask is {type(mask).__name__}; it must be a Pattern, a PatternMap or the text of an expression (from_dense makes a "
        "pattern of an array, from_csr of a sparse matrix)"
    )


def text_key(text: str) -> str:
    """The key of an expression that is given as a mask by itself."""
    return f"expression:bottom_right::{text}"


def _by_text(key: str) -> Pattern:
    found = _texts.get(key)
    if found is None:
        _, align, lengths, text = key.split(":", 3)
        q_len, kv_len = map(int, lengths.split("x")) if lengths else (None, None)
        found = pattern(text, q_len, kv_len, align=align)
        remember(_texts, key, found, _KEPT_TEXTS)
    return found


_pinned: dict[str, Mask] = {}


def pin(mask: Mask) -> None:
    """Keeps a mask for the life of the process: compiled code will ask for it by key."""
    if not mask.key.startswith("expression:"):
        _pinned[mask.key] = mask


def by_key(key: str) -> Mask:
    """The mask of a key that compiled code holds."""
    if key.startswith("expression:"):
        return _by_text(key)
    found = _alive.get(key)
    if found is None:
        raise RuntimeError(
            f"the mask {key} of a compiled function is not known in this process; make it again from its data before the call"
        )
    return found


def mapping_of_primitives() -> Mapping[str, str]:
    """{name: formula} from the library's own table."""
    lines = pattern_help().splitlines()
    table: dict[str, str] = {}
    for usage, formula in zip(lines, lines[1:]):
        match = re.match(r"([a-z_]\w*)", usage)
        if match and formula.startswith("    "):
            table.setdefault(match[1], formula.strip())
    return table
