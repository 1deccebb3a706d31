"""Linear layers with Kronecker-sparse weights (butterfly and Monarch factors), on NumPy arrays.

    layer = splat.Layer([(6, 64, 64, 1), (1, 768, 192, 2)], dtype="float32")
    y = layer.forward(x, weights)                 # x [n, 384] -> y [n, 1536]

A factor is ``(a, b, c, d)``, or any pattern with the support ``I_a x ones(b, c) x I_d``. The factor that is applied first
stands first. Its weights are an array ``[a, b, d, c]``. `splat.torch.kron_linear` does the same on PyTorch tensors.
"""

from __future__ import annotations

import ctypes as C
from typing import Any, ClassVar, Sequence

import numpy as np

from . import _cuda, _kernels
from ._library import _ROOM, DEVICE_CPU, DEVICE_GPU, DTYPES, Handle, check, choice, lib
from ._pattern import as_mask
from ._primitives import kron

__all__ = ["Layer"]

LAYOUTS = {"batch_first": 0, "batch_last": 1}
_int, _i64, _size, _ptr = C.c_int, C.c_int64, C.c_size_t, C.c_void_p


class LayerOptions(C.Structure):
    _fields_: ClassVar[Any] = [
        ("struct_size", _size), ("dtype", _int), ("tf32", _int), ("layout", _int), ("n", _i64), ("gradients", _int),
        ("device", _int), ("arch", _int),
    ] + _ROOM  # fmt: skip


class LayerFactor(C.Structure):
    _fields_: ClassVar[Any] = [(name, _i64) for name in "abcd"] + [("predicted_us", C.c_double)]


class LayerArgs(C.Structure):
    _fields_: ClassVar[Any] = [
        ("struct_size", _size), ("n", _i64), ("weights", _ptr), ("x", _ptr), ("x_stride", _i64), ("y", _ptr),
        ("y_stride", _i64), ("bias", _ptr), ("dy", _ptr), ("dy_stride", _i64), ("dx", _ptr), ("dx_stride", _i64),
        ("weight_gradients", _ptr), ("workspace", _ptr), ("workspace_bytes", _size),
    ] + _ROOM  # fmt: skip


for _name, _result, _arguments in (
    ("splat_layer_options_init", None, [C.POINTER(LayerOptions)]),
    ("splat_layer_compile", _int, [_ptr, C.POINTER(_ptr), _i64, C.POINTER(LayerOptions), C.POINTER(_ptr)]),
    ("splat_layer_destroy", None, [_ptr]),
    ("splat_layer_factors", _i64, [_ptr]),
    ("splat_layer_get_factor", _int, [_ptr, _i64, C.POINTER(LayerFactor)]),
    ("splat_layer_inputs", _i64, [_ptr]),
    ("splat_layer_outputs", _i64, [_ptr]),
    ("splat_layer_device", _int, [_ptr]),
    ("splat_layer_args_init", None, [C.POINTER(LayerArgs)]),
    ("splat_layer_workspace_bytes", _int, [_ptr, _i64, _int, C.POINTER(_size)]),
    ("splat_layer_forward", _int, [_ptr, C.POINTER(LayerArgs), _ptr]),
    ("splat_layer_backward", _int, [_ptr, C.POINTER(LayerArgs), _ptr]),
):  # fmt: skip
    _function = getattr(lib, _name)
    _function.restype, _function.argtypes = _result, _arguments


class CompiledLayer:
    """A splat_layer for one dtype, layout and device. `device` is the ordinal of a GPU, or -1 for the CPU engine."""

    def __init__(self, factors: Sequence[Any], dtype: int, layout: int, tf32: bool, n: int, gradients: bool,
                 device: int) -> None:  # fmt: skip
        masks = [kron(*f) if isinstance(f, tuple) else as_mask(f) for f in factors]
        if not masks:
            raise ValueError("factors is empty; it must have at least one")
        options = LayerOptions()
        lib.splat_layer_options_init(C.byref(options))
        options.dtype, options.layout, options.tf32, options.n = dtype, layout, int(tf32), n
        options.gradients, options.device = int(gradients), DEVICE_CPU if device < 0 else DEVICE_GPU
        pointers = (_ptr * len(masks))(*[m._pointer() for m in masks])
        arguments = (_kernels.context(), pointers, len(masks), C.byref(options))
        if device < 0:
            self._handle = Handle("layer", lib.splat_layer_compile, *arguments)
        else:
            with _cuda.primary_context(device):
                self._handle = Handle("layer", lib.splat_layer_compile, *arguments)
        assert self._handle.value is not None
        self.pointer: int = self._handle.value
        self.inputs, self.outputs = lib.splat_layer_inputs(self.pointer), lib.splat_layer_outputs(self.pointer)
        self.factors: list[tuple[int, int, int, int]] = []
        self.predicted_us = 0.0
        for index in range(len(masks)):
            factor = LayerFactor()
            check(lib.splat_layer_get_factor(self.pointer, index, C.byref(factor)))
            self.factors.append((factor.a, factor.b, factor.c, factor.d))
            self.predicted_us += factor.predicted_us

    @property
    def weight_shapes(self) -> list[tuple[int, int, int, int]]:
        """[a, b, d, c] of each factor."""
        return [(a, b, d, c) for a, b, c, d in self.factors]

    def workspace_bytes(self, n: int, backward: bool) -> int:
        size = C.c_size_t()
        check(lib.splat_layer_workspace_bytes(self.pointer, n, int(backward), C.byref(size)))
        return size.value

    def run(self, backward: bool, stream: int | None, n: int, weights: Sequence[int] | None = None,
            gradients: Sequence[int | None] | None = None, **fields: Any) -> None:  # fmt: skip
        """Pointers and strides as splat_layer_args has them; on the GPU the device must be the current one."""
        args = LayerArgs()
        lib.splat_layer_args_init(C.byref(args))
        args.n = n
        if weights is not None:
            args.weights = C.cast((_ptr * len(weights))(*weights), _ptr)
        if gradients is not None:
            args.weight_gradients = C.cast((_ptr * len(gradients))(*gradients), _ptr)
        for name, value in fields.items():
            setattr(args, name, value)
        check((lib.splat_layer_backward if backward else lib.splat_layer_forward)(self.pointer, C.byref(args), stream))


def _shape_of(layout: int, features: int, n: int) -> tuple[int, int]:
    return (n, features) if layout == 0 else (features, n)


class Layer:
    """A layer on the CPU engine.

    Parameters
    ----------
    factors : sequence of (a, b, c, d) or Pattern
        The one that is applied first stands first.
    dtype : {"float32", "float16"}
        Of weights and activations. Sums are in float32.
    layout : {"batch_first", "batch_last"}
        Activations are [n, features] or [features, n].
    """

    def __init__(self, factors: Sequence[Any], dtype: str = "float32", layout: str = "batch_first") -> None:
        if dtype not in ("float32", "float16"):
            raise ValueError(f"dtype is {dtype!r}; it must be 'float32' or 'float16'")
        self._layout = choice("layout", layout, LAYOUTS)
        self._dtype = np.dtype(dtype)
        self._compiled = CompiledLayer(factors, DTYPES[dtype], self._layout, False, 4096, True, -1)
        self.factors, self.weight_shapes = self._compiled.factors, self._compiled.weight_shapes
        self.inputs, self.outputs = self._compiled.inputs, self._compiled.outputs

    def __repr__(self) -> str:
        return f"Layer({self.factors}, {self._dtype.name!r}, {list(LAYOUTS)[self._layout]!r})"

    def _array(self, name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        array = np.ascontiguousarray(value, self._dtype)
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}; it must have {shape}")
        return array

    def _weights(self, weights: Sequence[Any]) -> list[np.ndarray]:
        if len(weights) != len(self.factors):
            raise ValueError(f"there are {len(weights)} arrays of weights; the layer has {len(self.factors)} factors")
        return [self._array(f"weights[{f}]", w, s) for f, (w, s) in enumerate(zip(weights, self.weight_shapes))]

    def _samples(self, name: str, value: Any, features: int) -> tuple[np.ndarray, int]:
        shape = np.shape(value)
        if len(shape) != 2 or shape[1 - self._layout] != features or shape[self._layout] < 1:
            raise ValueError(f"{name} has the shape {shape}; it must have {_shape_of(self._layout, features, -1)}, "
                             "-1 for the number of samples")  # fmt: skip
        return self._array(name, value, shape), shape[self._layout]

    def _workspace(self, n: int, backward: bool) -> tuple[np.ndarray, int, int]:
        size = self._compiled.workspace_bytes(n, backward)
        memory = np.empty(size + 256, np.uint8)
        return memory, -(-memory.ctypes.data // 256) * 256, size

    def forward(self, x: Any, weights: Sequence[Any], bias: Any = None) -> np.ndarray:
        """``y = W x + bias`` for every sample; `x` and the result as `layout` says, `weights` as `weight_shapes`."""
        x, n = self._samples("x", x, self.inputs)
        weights = self._weights(weights)
        bias = None if bias is None else self._array("bias", bias, (self.outputs,))
        y = np.empty(_shape_of(self._layout, self.outputs, n), self._dtype)
        memory, workspace, size = self._workspace(n, False)
        self._compiled.run(False, None, n, [w.ctypes.data for w in weights], x=x.ctypes.data, y=y.ctypes.data,
                           bias=None if bias is None else bias.ctypes.data, workspace=workspace, workspace_bytes=size)  # fmt: skip
        return y

    def backward(self, x: Any, weights: Sequence[Any], dy: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        """Gradients of `x` and of each factor's weights, given that of the result."""
        x, n = self._samples("x", x, self.inputs)
        dy, of_dy = self._samples("dy", dy, self.outputs)
        if of_dy != n:
            raise ValueError(f"x has {n} samples and dy {of_dy}; they must agree")
        weights = self._weights(weights)
        pointers = [w.ctypes.data for w in weights]
        dx, gradients = np.empty_like(x), [np.empty_like(w) for w in weights]
        memory, workspace, size = self._workspace(n, True)
        if len(weights) > 1:  # the activations between factors
            y = np.empty_like(dy)
            self._compiled.run(False, None, n, pointers, x=x.ctypes.data, y=y.ctypes.data, workspace=workspace,
                               workspace_bytes=size)  # fmt: skip
        self._compiled.run(True, None, n, pointers, [g.ctypes.data for g in gradients], x=x.ctypes.data,
                           dy=dy.ctypes.data, dx=dx.ctypes.data, workspace=workspace, workspace_bytes=size)  # fmt: skip
        return dx, gradients
