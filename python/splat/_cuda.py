"""The few driver calls that make a GPU's primary context current; libcuda is opened when the first is needed."""

from __future__ import annotations

import contextlib
import ctypes as C
from typing import Any, Iterator

from ._library import CudaError, NoDeviceError

_driver: Any = None


def driver() -> Any:
    global _driver
    if _driver is None:
        try:
            library = C.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoDeviceError(f"libcuda.so.1 cannot be loaded ({error}); a tensor on a GPU needs the CUDA driver") from None
        _check(library.cuInit(0), "cuInit")
        _driver = library
    return _driver


def _check(result: int, name: str) -> None:
    if result:
        raise CudaError(f"{name} failed with CUDA error {result}")


def _retain(ordinal: int) -> tuple[C.c_int, C.c_void_p]:
    cuda, device, context = driver(), C.c_int(), C.c_void_p()
    _check(cuda.cuDeviceGet(C.byref(device), ordinal), "cuDeviceGet")
    _check(cuda.cuDevicePrimaryCtxRetain(C.byref(context), device), "cuDevicePrimaryCtxRetain")
    return device, context


@contextlib.contextmanager
def primary_context(ordinal: int) -> Iterator[None]:
    """The device's primary context, the one that PyTorch and XLA use, is the thread's current one inside."""
    device, context = _retain(ordinal)
    try:
        _check(_driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")
        try:
            yield
        finally:
            _driver.cuCtxPopCurrent_v2(C.byref(C.c_void_p()))
    finally:
        _driver.cuDevicePrimaryCtxRelease_v2(device)


def make_current(ordinal: int) -> None:
    """Makes the device's primary context the thread's current one, for a thread that has used no GPU yet. The reference
    that is taken stays, as the runtime's own does."""
    _, context = _retain(ordinal)
    _check(_driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
