"""Sparse attention from any mask.

A mask is a pattern: an expression (`pattern`, or constructors such as `causal` and `window` combined by ``& | - ~``), or made
from data (`from_dense`, `from_blocks`, `from_csr`, `from_function`). `attention` computes on NumPy arrays;
`splat.torch.attention` and `splat.jax.attention` on those of PyTorch and JAX, on GPU and CPU.

>>> import numpy as np, splat
>>> mask = splat.causal() & splat.window(255, 0)
>>> q = k = v = np.ones((1, 4, 1024, 64), np.float32)
>>> splat.attention(q, k, v, mask).shape
(1, 4, 1024, 64)

Messages about compiles and cache trouble go to the logger ``"splat"``.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._library import (
    VERSION as __version__, CompileError, CudaError, NoDeviceError, SplatError, UnsupportedError, device_name, library_path,
)  # fmt: skip
from ._numpy import attention
from ._pattern import (
    Candidate, Mask, Pattern, PatternMap, Plan, from_blocks, from_csr, from_dense, from_function, pattern, pattern_help,
    pattern_map, per_head,
)  # fmt: skip
from ._sparse import sddmm, sparse_softmax, spmm
from .layer import Layer
from ._primitives import (
    axial, banded_blocks, blocks, butterfly, causal, checkerboard, cols, comb, diagonals, dilated, documents, full, grid,
    kron, logsparse, random_blocks, rows, strided, swin, window,
)  # fmt: skip

__all__ = [
    "Candidate", "CompileError", "CudaError", "Layer", "Mask", "NoDeviceError", "Pattern", "PatternMap", "Plan", "SplatError",
    "UnsupportedError", "__version__", "attention", "axial", "banded_blocks", "blocks", "butterfly", "causal",
    "checkerboard", "cols", "comb", "device_name", "diagonals", "dilated", "documents", "from_blocks", "from_csr",
    "from_dense", "from_function", "full", "grid", "kron", "library_path", "logsparse", "pattern", "pattern_help", "pattern_map",
    "per_head", "random_blocks", "rows", "sddmm", "sparse_softmax", "spmm", "strided", "swin", "window",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # `splat.torch` and `splat.jax` import their frameworks: only when they are asked for.
    if name in ("torch", "jax"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
