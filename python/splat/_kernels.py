"""Compiled kernels: one context for the process, and a few kernels kept with each mask.

A GPU kernel owns device memory. Giving that back would break a stream capture that is under way and a graph that was
captured, so kernels that nobody holds any longer wait until the next compilation, which cannot happen during a capture, and
kernels that ran under capture stay.
"""

from __future__ import annotations

import collections
import ctypes as C
import logging
import os
import threading
from typing import Any

from . import _cuda
from ._library import (
    ATTENTION, DEVICE_CPU, DEVICE_GPU, AttentionArgs, ContextOptions, Handle, LogFn, check, lib, make_options,
)  # fmt: skip
from ._pattern import Mask, remember

log = logging.getLogger("splat")
KEPT = 64  # kernels that a mask keeps

_lock = threading.Lock()
_context: int | None = None
_discarded: "collections.deque[Handle]" = collections.deque()
_captured: "list[Kernel]" = []
_single_threaded = False


@LogFn
def _say(level: int, message: bytes, _user: object) -> None:
    log.log(logging.WARNING if level else logging.INFO, "%s", message.decode(errors="replace"))


def context() -> int:
    """Address of the process's context: cache settings come from the environment, messages go to the logger "splat".

    It is never destroyed: at the interpreter's end kernels may outlive it, and threads of XLA may still use it.
    """
    global _context
    if _context is None:
        with _lock:
            if _context is None:
                options = ContextOptions()
                lib.splat_context_options_init(C.byref(options))
                options.log = _say
                options.threads = 1 if _single_threaded else 0
                handle = Handle("context", lib.splat_context_create, C.byref(options))
                _context, handle.value = handle.value, None
    assert _context is not None
    return _context


# The OpenMP runtime's threads do not survive a fork: a child computes on one thread, with kernels of its own.
_generation = 0


def _in_child() -> None:
    global _context, _generation, _lock, _single_threaded
    _context = None  # the copy is left alone: the parent's threads may have held its locks
    _lock = threading.Lock()
    _single_threaded = True
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Kernel:
    """A kernel for one mask, dtype, head dims, batch, heads and device."""

    __slots__ = ("handle", "pointer", "gpu", "workspace_bytes", "generation", "__weakref__")

    def __init__(self, handle: Handle, batch: int, heads: int, gpu: bool) -> None:
        assert handle.value is not None
        self.handle, self.pointer, self.gpu = handle, handle.value, gpu
        self.generation = _generation
        size = C.c_size_t()
        check(lib.splat_workspace_bytes(self.pointer, batch, heads, C.byref(size)))
        self.workspace_bytes = size.value

    def __del__(self) -> None:
        handle = getattr(self, "handle", None)
        if handle is None:
            return
        if self.generation != _generation:
            handle.value = None  # it belongs to the parent process
        elif self.gpu and _discarded is not None:  # None when the interpreter is ending
            _discarded.append(handle)

    def keep_for_graph(self) -> None:
        """A graph may replay this kernel at any later time."""
        with _lock:
            if self not in _captured:
                _captured.append(self)


def _drop_discarded() -> None:
    try:
        while True:
            _discarded.popleft()
    except IndexError:  # another thread may have taken the last one
        pass


def get(mask: Mask, dtype: int, head_dim: int, value_dim: int, batch: int, heads: int, kv_heads: int,
        device: int, op: int = ATTENTION) -> Kernel:  # fmt: skip
    """The kernel; compiled when it is not at hand.

    `device` is the ordinal of a GPU, or -1 for the CPU engine. Must not be called while the thread captures a stream.
    """
    key = (dtype, head_dim, value_dim, batch, heads, kv_heads, device, op)
    kernel = mask._kernels.get(key)
    if kernel is not None and kernel.generation == _generation:
        return kernel
    check_map(mask, batch, heads)
    options = make_options(
        dtype=dtype, head_dim=head_dim, value_dim=value_dim, batch=batch, heads=heads, kv_heads=kv_heads,
        device=DEVICE_CPU if device < 0 else DEVICE_GPU, op=op,
    )  # fmt: skip
    arguments = (context(), mask._pointer(), C.byref(options))
    if device < 0:
        handle = Handle("kernel", lib.splat_compile, *arguments)
    else:
        with _cuda.primary_context(device):
            _drop_discarded()
            handle = Handle("kernel", lib.splat_compile, *arguments)
    kernel = Kernel(handle, batch, heads, device >= 0)
    remember(mask._kernels, key, kernel, KEPT)
    return kernel


def check_map(mask: Mask, batch: int, heads: int) -> None:
    if mask.map_batch not in (1, batch) or mask.map_heads not in (1, heads):
        raise ValueError(
            f"batch x heads is {batch} x {heads}; the mask map has {mask.map_batch} x {mask.map_heads} (1 serves any number)"
        )


def make_args(batch: int, heads: int, kv_heads: int, q_len: int, kv_len: int, scale: float) -> AttentionArgs:
    args = AttentionArgs()
    lib.splat_attention_args_init(C.byref(args))
    args.batch, args.heads, args.kv_heads, args.q_len, args.kv_len = batch, heads, kv_heads, q_len, kv_len
    args.scale = scale
    return args


def check_scale(scale: Any) -> float:
    """The scale as the library takes it: 0 stands for 1 / sqrt(head_dim)."""
    if scale is None:
        return 0.0
    scale = float(scale)
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"scale is {scale:g}; it must be finite and above 0, or None for 1 / sqrt(head_dim)")
    return scale


def check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], names: tuple[str, str, str],
                 grouped: bool = True, axes: str = "[batch, heads, length, dim]") -> None:  # fmt: skip
    """ValueError unless q, k and v, as [batch, heads, length, dim], fit each other."""
    for name, shape in zip(names, (q, k, v)):
        if len(shape) != 4:
            raise ValueError(f"{name} has {len(shape)} {'axis' if len(shape) == 1 else 'axes'}; it must have 4, {axes}")
        if 0 in shape:
            raise ValueError(f"{name} has shape {tuple(shape)}; no axis may be empty")
    qn, kn, vn = names
    if k[0] != q[0] or v[0] != q[0]:
        raise ValueError(f"batch is {q[0]} in {qn}, {k[0]} in {kn} and {v[0]} in {vn}; it must be the same in all")
    if k[1] != v[1]:
        raise ValueError(f"heads is {k[1]} in {kn} and {v[1]} in {vn}; it must be the same in both")
    if k[2] != v[2]:
        raise ValueError(f"length is {k[2]} in {kn} and {v[2]} in {vn}; it must be the same in both")
    if q[3] != k[3]:
        raise ValueError(f"dim is {q[3]} in {qn} and {k[3]} in {kn}; it must be the same in both")
    if q[1] % k[1]:
        raise ValueError(f"heads is {q[1]} in {qn} and {k[1]} in {kn}; the first must be a multiple of the second")
    if not grouped and q[1] != k[1]:
        raise ValueError(
            f"heads is {q[1]} in {qn} and {k[1]} in {kn}; enable_gqa=True lets a group of query heads share a key head"
        )
