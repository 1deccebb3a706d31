"""Energy of the whole board from NVML's counter, and the windows that make a figure a call of it.

The counter moves in steps some 10 to 100 ms apart, so a window begins and ends where it moves: energy and time between two
steps belong together, and the power that follows is exact to the counter's own error.
"""
import ctypes as C
import time

TICK_LIMIT_S = 10.0  # a counter that does not move for so long does not count


class Unavailable(Exception):
    """There is no energy counter to read; the message says why."""


class Counter:
    """read() gives millijoules since the driver was loaded, of the GPU with this UUID ("GPU-...")."""

    def __init__(self, uuid, library="libnvidia-ml.so.1"):
        try:
            self._nvml = C.CDLL(library)
        except OSError as error:
            raise Unavailable(f"NVML cannot be loaded: {error}") from None
        self._nvml.nvmlErrorString.restype = C.c_char_p
        self._device = C.c_void_p()
        self._check("nvmlInit_v2")
        self._check("nvmlDeviceGetHandleByUUID", uuid.encode(), C.byref(self._device))
        self.read()

    def _check(self, name, *arguments):
        status = getattr(self._nvml, name)(*arguments)
        if status:
            raise Unavailable(f"{name}: {self._nvml.nvmlErrorString(status).decode()}")

    def read(self):
        value = C.c_ulonglong()
        self._check("nvmlDeviceGetTotalEnergyConsumption", self._device, C.byref(value))
        return value.value


def power(read, step, seconds, clock=time.monotonic):
    """Millijoules a second and the seconds measured, at least `seconds`, while step() is called again and again. step keeps
    the device as busy as it is to be, and returns within some 20 ms. Unavailable when the counter stands still."""
    start, began, value = None, clock(), read()
    moved = began
    while True:
        step()
        now, new = clock(), read()
        if new != value:
            value, moved = new, now
            if start is None:
                start = (now, new)
            elif now - start[0] >= seconds:
                return (new - start[1]) / (now - start[0]), now - start[0]
        elif now - moved > TICK_LIMIT_S:
            raise Unavailable(f"the energy counter has stood still for {TICK_LIMIT_S:.0f} s")


def per_call(busy_mw, idle_mw, ms):
    """The record of one implementation: what a call of `ms` milliseconds costs at this power, gross and net of idle."""
    return {"ms": ms, "watt": busy_mw / 1e3, "idle_watt": idle_mw / 1e3, "gross_mj": busy_mw * ms / 1e3,
            "net_mj": (busy_mw - idle_mw) * ms / 1e3}
