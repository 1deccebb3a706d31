"""What is compared: kinds of problem, their settings, and the least that each costs. Needs neither torch nor a GPU.

A setting is a flat dict: "kind" and one value an axis. FLOPs count the useful multiplications and additions of allowed pairs or
stored weights alone; bytes count every input and output once, in the problem's element size. The floor is the larger of FLOPs
over the measured rate of a matrix product of that dtype and bytes over the measured rate of a copy.
"""
import fnmatch
import itertools
import json
from typing import Callable, NamedTuple

import suite

# Bytes an element. fp32 is strict, tf32 means fp32 tensors whose products may be rounded to TF32.
DTYPES = {"fp16": 2, "bf16": 2, "fp32": 4, "tf32": 4}

# (a, b, c, d): the support I_a x 1_(b x c) x I_d of a Kronecker-sparse weight, abd rows and acd columns.
SHAPES = ["64,48,48,4", "1,48,48,4", "6,64,64,1", "1,768,192,2", "6,64,256,1", "4,64,64,64", "32,96,96,4", "4,128,128,4",
          "1,256,256,16", "1,768,768,4", "16,128,128,1", "1,32,32,32", "32,2,2,32"]


class Kind(NamedTuple):
    summary: str
    axes: dict          # name -> values: all there are of names, those measured by default of numbers, shapes and patterns
    flops: Callable     # (setting, allowed pairs of one mask or None) -> FLOPs a call
    elements: Callable  # likewise: elements read and written at least
    defaults: dict = {}  # name -> values measured by default where those are not all


def _heads(s):
    return s["batch"] * s["heads"]


def _rows(s):
    """Elements of one [batch, heads, seq, dim] tensor."""
    return _heads(s) * s["seq"] * s["dim"]


def blocks(s):
    """a, b, c, d of a kron setting."""
    return tuple(int(x) for x in s["shape"].split(","))


def _product_flops(s, pairs):
    return 2 * _heads(s) * pairs * s["dim"]


def _product_elements(s, pairs):
    return 2 * _rows(s) + _heads(s) * pairs


def _kron_flops(s, _pairs):
    a, b, c, d = blocks(s)
    return 2 * s["n"] * a * b * c * d


def _kron_elements(s, _pairs):
    a, b, c, d = blocks(s)
    return s["n"] * a * d * (b + c) + a * b * c * d


_MASKED = {"pattern": [p.name for p in suite.SUITE], "seq": [1024, 2048, 4096], "dim": [64, 128], "batch": [2], "heads": [16],
           "dtype": list(DTYPES), "layout": ["bhsd", "bshd"]}
_ONE_LAYOUT = {"layout": ["bhsd"]}

KINDS = {
    "attention": Kind("softmax(scale q k^T at allowed pairs) v", dict(_MASKED, seq=[8192]),
                      lambda s, pairs: 4 * _heads(s) * pairs * s["dim"], lambda s, pairs: 4 * _rows(s),
                      {"dtype": ["bf16", "fp16"], **_ONE_LAYOUT}),
    "sddmm": Kind("values = scale q k^T at allowed pairs", _MASKED, _product_flops, _product_elements, _ONE_LAYOUT),
    "softmax": Kind("softmax of the rows of values at allowed pairs",
                    {k: v for k, v in _MASKED.items() if k not in ("dim", "layout")},
                    lambda s, pairs: 0, lambda s, pairs: 2 * _heads(s) * pairs),
    "spmm": Kind("A v, A the values at allowed pairs", _MASKED, _product_flops, _product_elements, _ONE_LAYOUT),
    "spmm_transposed": Kind("A^T v, A the values at allowed pairs", _MASKED, _product_flops, _product_elements, _ONE_LAYOUT),
    "kron": Kind("Kronecker-sparse layer: forward, gradient of the input, gradient of the weights",
                 {"shape": SHAPES, "op": ["forward", "grad_input", "grad_weight"], "n": [25088, 4096, 256, 1000],
                  "dtype": list(DTYPES), "layout": ["batch_first", "batch_last"]}, _kron_flops, _kron_elements,
                 {"op": ["forward"]}),
}


class Problem:
    """One setting; its axes are attributes too. pairs: allowed pairs of the mask, None where there is none."""

    def __init__(self, setting, pairs=None):
        self.setting, self.pairs = setting, pairs
        self._kind = KINDS[setting["kind"]]

    def __getattr__(self, name):
        try:
            return self.__dict__["setting"][name]
        except KeyError:
            raise AttributeError(f"a {self.setting['kind']} problem has no {name}") from None

    @property
    def key(self):
        return key(self.setting)

    def flops(self):
        return self._kind.flops(self.setting, self.pairs)

    def bytes(self):
        return self._kind.elements(self.setting, self.pairs) * DTYPES[self.dtype]

    def floor(self, rates):
        """(milliseconds, "arithmetic" or "memory") from {"matmul_flops": {dtype: FLOP/s}, "copy_bytes": bytes/s}."""
        arithmetic = self.flops() / rates["matmul_flops"][self.dtype] * 1e3
        memory = self.bytes() / rates["copy_bytes"] * 1e3
        return (arithmetic, "arithmetic") if arithmetic >= memory else (memory, "memory")

    def text(self):
        return text(self.setting)


def key(setting):
    return json.dumps(setting, sort_keys=True)


def text(setting):
    """A setting, or part of one, on one line: kron 4,64,64,64 forward n 25088 fp16 batch_last."""
    numbers = {k for k, v in setting.items() if isinstance(v, int)}
    return " ".join(f"{k} {v}" if k in numbers else str(v) for k, v in setting.items())


def kinds(globs):
    """The names of the kinds that match; ValueError for a glob that matches none."""
    found = []
    for g in globs:
        names = fnmatch.filter(KINDS, g)
        if not names:
            raise ValueError(f"kind {g} is none of {', '.join(KINDS)}")
        found += [n for n in names if n not in found]
    return found


def values(kind, axis, wanted):
    """The values of an axis that the words on the command line ask for: numbers, globs, and, where the axis is open (a shape
    or a mask's expression), words of its form. ValueError says what is wrong."""
    known, out = KINDS[kind].axes[axis], []
    for word in wanted:
        if isinstance(known[0], int):
            if not str(word).isdigit() or int(word) < 1:
                raise ValueError(f"--{axis} {word}: it must be a whole number of at least 1")
            found = [int(word)]
        else:
            found = fnmatch.filter(known, word)
            if not found and axis == "shape":
                found = [_shape(word)]
            if not found and axis == "pattern" and not set(word) & set("*?[]"):
                found = [word]  # an expression: the engine hears from splat whether it is one
            if not found:
                raise ValueError(f"--{axis} {word}: {kind} has {', '.join(known)}")
        out += [v for v in found if v not in out]
    return out


def _shape(word):
    parts = word.split(",")
    if len(parts) != 4 or not all(x.isdigit() and int(x) for x in parts):
        raise ValueError(f"--shape {word}: it must be a,b,c,d, four whole numbers of at least 1")
    return ",".join(str(int(x)) for x in parts)


def expand(kind, wanted, every_axis=True):
    """Settings of a kind: the product of the values of its axes. `wanted` maps an axis to words; axes left out take their
    defaults, or are left out of the settings too when every_axis is false."""
    axes = KINDS[kind].axes
    chosen = {}
    for axis, known in axes.items():
        if wanted.get(axis):
            chosen[axis] = values(kind, axis, wanted[axis])
        elif every_axis:
            chosen[axis] = KINDS[kind].defaults.get(axis, known)
    return [dict(zip(("kind", *chosen), (kind, *combination))) for combination in itertools.product(*chosen.values())]


def check_axes(kind_names, wanted):
    """ValueError when an axis is named that none of the kinds has."""
    for axis, words in wanted.items():
        if words and not any(axis in KINDS[k].axes for k in kind_names):
            raise ValueError(f"--{axis}: no such axis in {', '.join(kind_names)}")


def all_axes():
    return list(dict.fromkeys(axis for k in KINDS.values() for axis in k.axes))
