"""Windows of the energy counter, with a simulated board and a stand-in for NVML."""

import subprocess

import pytest
import stand_in  # noqa: F401  (finds bench/)

from compare import energy


class Board:
    """A board that draws `watt`, whose counter moves every `tick` seconds."""

    def __init__(self, watt, tick=0.1):
        self.now, self.watt, self.tick = 0.037, watt, tick

    def clock(self):
        return self.now

    def read(self):
        return int(self.now / self.tick + 1e-9) * self.tick * self.watt * 1e3

    def step(self):
        self.now += 0.013


def test_power_between_steps_of_the_counter():
    board = Board(420.0)
    mw, seconds = energy.power(board.read, board.step, 2.0, board.clock)
    assert mw == pytest.approx(420e3, rel=0.01) and 2.0 <= seconds < 2.2


def test_a_coarse_counter_gives_the_same():
    board = Board(700.0, tick=0.7)
    assert energy.power(board.read, board.step, 2.0, board.clock)[0] == pytest.approx(700e3, rel=0.02)


def test_a_counter_that_stands_still_is_no_counter():
    board = Board(0.0)
    with pytest.raises(energy.Unavailable, match="stood still for 10 s"):
        energy.power(board.read, board.step, 2.0, board.clock)
    assert board.now < 11


def test_energy_of_a_call():
    e = energy.per_call(busy_mw=600e3, idle_mw=100e3, ms=0.5)
    assert e["gross_mj"] == pytest.approx(300.0) and e["net_mj"] == pytest.approx(250.0) and e["watt"] == 600.0


NVML = r"""
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = (void *)7; return strcmp(uuid, "GPU-known") ? 6 : 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj)
{
    static unsigned long long total = 1ull << 40;
    *mj = device == (void *)7 ? (total += 5) : 0;
    return 0;
}
const char *nvmlErrorString(int status) { return status == 6 ? "Not Found" : "?"; }
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(NVML)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / "nvml.so"), str(folder / "nvml.c")], check=True)
    return str(folder / "nvml.so")


def test_the_counter_reads_64_bits(nvml):
    counter = energy.Counter("GPU-known", nvml)
    first = counter.read()
    assert first > 1 << 40 and counter.read() == first + 5


def test_what_nvml_refuses_is_said(nvml):
    with pytest.raises(energy.Unavailable, match="nvmlDeviceGetHandleByUUID: Not Found"):
        energy.Counter("GPU-other", nvml)
    with pytest.raises(energy.Unavailable, match="NVML cannot be loaded"):
        energy.Counter("GPU-known", "libnvidia-ml-that-is-not-there.so.1")
