"""Linear layers with Kronecker-sparse weights (butterfly and Monarch factors), on PyTorch tensors, with gradients.

    y = splat.torch.kron_linear(x, weights, [(6, 64, 64, 1), (1, 768, 192, 2)])
    layer = splat.torch.KronLinear([(6, 64, 64, 1), (1, 768, 192, 2)])

On the GPU everything runs on the current stream; no activation is copied or permuted. The first call with a dtype, a layout
and a size class of n compiles (or loads from the disk cache); make it before capturing a CUDA graph.
"""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from . import _cuda, _kernels
from ._library import BF16, FP16, FP32, choice
from ._pattern import Mask
from .layer import LAYOUTS, CompiledLayer

__all__ = ["KronLinear", "kron_linear"]

_DTYPES = {torch.float16: FP16, torch.bfloat16: BF16, torch.float32: FP32}
_compiled: dict[Any, CompiledLayer] = {}


def _layer(factors: tuple[Any, ...], dtype: torch.dtype, layout: int, n: int, gradients: bool, tf32: bool,
           device: torch.device) -> CompiledLayer:  # fmt: skip
    """The layer for about n samples: kernels are chosen for the next power of two."""
    ordinal = device.index if device.type == "cuda" else -1
    tf32 = tf32 and dtype == torch.float32
    key = (factors, dtype, layout, max(64, 1 << (n - 1).bit_length()), gradients, tf32, ordinal, _kernels._generation)
    layer = _compiled.get(key)
    if layer is None:
        if ordinal >= 0 and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "splat: the first call with these factors and sizes compiles kernels, which a stream capture does not "
                "allow; call once before the capture"
            )
        layer = _compiled[key] = CompiledLayer(factors, _DTYPES[dtype], layout, tf32, key[3], gradients, ordinal)
    return layer


def _rows(x: torch.Tensor) -> torch.Tensor:
    """The same with each row's elements side by side and rows apart: a copy only where they are not."""
    good = x.stride(1) == 1 or x.shape[1] == 1
    return x if good and (x.stride(0) >= x.shape[1] or x.shape[0] == 1) else x.contiguous()


def _stride(x: torch.Tensor) -> int:
    return max(x.stride(0), x.shape[1])


def _run(layer: CompiledLayer, backward: bool, device: torch.device, *arguments: Any, **fields: Any) -> None:
    if device.type != "cuda":
        layer.run(backward, None, *arguments, **fields)
        return
    with torch.cuda.device(device):
        _cuda.make_current(device.index) if not torch.cuda.is_initialized() else None
        layer.run(backward, torch.cuda.current_stream().cuda_stream, *arguments, **fields)


def _workspace(layer: CompiledLayer, n: int, backward: bool, device: torch.device) -> tuple[torch.Tensor | None, dict[str, int]]:
    size = layer.workspace_bytes(n, backward)
    if size == 0:
        return None, {}
    memory = torch.empty(size + 255, dtype=torch.uint8, device=device)
    return memory, {"workspace": (memory.data_ptr() + 255) & -256, "workspace_bytes": size}


class _KronLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, factors: tuple[Any, ...], layout: int, tf32: bool,
                *weights: torch.Tensor) -> torch.Tensor:  # fmt: skip
        n = x.shape[layout]
        gradients = any(ctx.needs_input_grad)
        layer = _layer(factors, x.dtype, layout, n, gradients, tf32, x.device)
        if x.shape[1 - layout] != layer.inputs:
            raise ValueError(f"x has {x.shape[1 - layout]} features; the factors take {layer.inputs}")
        for f, (w, shape) in enumerate(zip(weights, layer.weight_shapes)):
            if w.shape != shape or w.dtype != x.dtype or w.device != x.device:
                raise ValueError(f"weights[{f}] is {tuple(w.shape)}, {w.dtype} on {w.device}; it must be {shape}, {x.dtype} on {x.device}")
        if len(weights) != len(layer.factors):
            raise ValueError(f"there are {len(weights)} weights; there are {len(layer.factors)} factors")
        if bias is not None and (bias.shape != (layer.outputs,) or bias.dtype != x.dtype or bias.device != x.device):
            raise ValueError(f"bias is {tuple(bias.shape)}, {bias.dtype} on {bias.device}; it must be ({layer.outputs},), {x.dtype} on {x.device}")
        x, weights = _rows(x), tuple(w.contiguous() for w in weights)
        bias = None if bias is None else bias.contiguous()
        y = x.new_empty((n, layer.outputs) if layout == 0 else (layer.outputs, n))
        # Activations between factors stay in the workspace for the gradients of weights.
        memory, fields = _workspace(layer, n, gradients and len(weights) > 1, x.device)
        _run(layer, False, x.device, n, [w.data_ptr() for w in weights], x=x.data_ptr(), x_stride=_stride(x), y=y.data_ptr(),
             y_stride=_stride(y), bias=None if bias is None else bias.data_ptr(), **fields)  # fmt: skip
        if gradients:
            ctx.layer, ctx.layout, ctx.memory, ctx.fields = layer, layout, memory, fields
            ctx.save_for_backward(x, *weights)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, *weights = ctx.saved_tensors
        layer, n = ctx.layer, dy.shape[ctx.layout]
        dy = _rows(dy)
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if ctx.needs_input_grad[0] else None
        wanted = [torch.empty_like(w) if need else None for w, need in zip(weights, ctx.needs_input_grad[5:])]
        memory, fields = (ctx.memory, ctx.fields) if len(weights) > 1 else _workspace(layer, n, True, x.device)
        if dx is not None or any(w is not None for w in wanted):
            _run(layer, True, x.device, n, [w.data_ptr() for w in weights],
                 [None if w is None else w.data_ptr() for w in wanted], x=x.data_ptr(), x_stride=_stride(x), dy=dy.data_ptr(),
                 dy_stride=_stride(dy), dx=None if dx is None else dx.data_ptr(), dx_stride=0 if dx is None else _stride(dx),
                 **fields)  # fmt: skip
        db = dy.sum(ctx.layout, dtype=torch.float32).to(dy.dtype) if ctx.needs_input_grad[1] else None
        return (dx, db, None, None, None, *wanted)


def kron_linear(x: torch.Tensor, weights: Sequence[torch.Tensor], factors: Sequence[Any], bias: torch.Tensor | None = None,
                layout: str = "batch_first", tf32: bool | None = None) -> torch.Tensor:  # fmt: skip
    """``y = W x + bias``, W a product of Kronecker-sparse factors, differentiable once.

    Parameters
    ----------
    x : Tensor [..., inputs], or with layout "batch_last" [inputs, n]
        float16, bfloat16 or float32. Rows may lie any distance apart.
    weights : sequence of Tensor [a, b, d, c]
        Of each factor, of the dtype and on the device of `x`.
    factors : sequence of (a, b, c, d) or Pattern
        The one that is applied first stands first.
    bias : Tensor [outputs], optional
    layout : {"batch_first", "batch_last"}
    tf32 : bool, optional
        float32 on the GPU: products of numbers rounded to tf32. None: ``torch.backends.cuda.matmul.allow_tf32``.

    Returns
    -------
    y : Tensor [..., outputs], or [outputs, n]

    Raises
    ------
    ValueError
        When shapes, dtypes or devices do not fit.
    UnsupportedError
        When a pattern is not Kronecker-sparse; the sentence names the first row that deviates.
    """
    if x.dtype not in _DTYPES:
        raise ValueError(f"x is {x.dtype}; it must be float16, bfloat16 or float32")
    number = choice("layout", layout, LAYOUTS)
    key = tuple(f if isinstance(f, Mask) else tuple(int(v) for v in f) for f in factors)
    if tf32 is None:
        tf32 = bool(torch.backends.cuda.matmul.allow_tf32)
    if number == 1 and x.dim() != 2:
        raise ValueError(f"x has {x.dim()} axes; with layout 'batch_last' it must have 2, [inputs, n]")
    lead = x.shape[:-1]
    if math.prod(x.shape) == 0 or x.dim() == 0:
        raise ValueError(f"x has the shape {tuple(x.shape)}; it must have at least one sample")
    flat = x if number == 1 else x.reshape(-1, x.shape[-1])
    y = _KronLinear.apply(flat, bias, key, number, tf32, *weights)
    return y if number == 1 else y.reshape(*lead, y.shape[-1])


class KronLinear(torch.nn.Module):
    """A linear layer whose weights are a product of Kronecker-sparse factors; parameters as `kron_linear` takes them.

    Weights start as random numbers of variance 1 / c, so that the variance of activations is kept.
    """

    def __init__(self, factors: Sequence[Any], bias: bool = True, layout: str = "batch_first", tf32: bool | None = None,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:  # fmt: skip
        super().__init__()
        shapes = CompiledLayer(factors, FP32, 0, False, 1, False, -1)  # checks the factors, on the CPU
        self.factors = tuple(shapes.factors)
        self.in_features, self.out_features, self.layout, self.tf32 = shapes.inputs, shapes.outputs, layout, tf32
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(shape, device=device, dtype=dtype) * shape[3] ** -0.5) for shape in shapes.weight_shapes
        )
        self.bias = torch.nn.Parameter(torch.zeros(self.out_features, device=device, dtype=dtype)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return kron_linear(x, list(self.weights), self.factors, self.bias, self.layout, self.tf32)

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.out_features}, factors {list(self.factors)}, bias={self.bias is not None}"
