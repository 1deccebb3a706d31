"""The fuzz targets: every seed, then a fixed number of inputs made from them; with SPLAT_DEEP, a minute of each.

The programs are built by `make fuzz` beside splatc, with clang's libFuzzer, AddressSanitizer and UBSan. An input that
shows a fault is kept in the folder that the failure names: put it among the seeds once the fault is mended.
"""

import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = pathlib.Path(os.environ.get("SPLATC", HERE.parent.parent / "build" / "splatc")).resolve().parent / "fuzz"
DEEP = bool(os.environ.get("SPLAT_DEEP"))

# Inputs for a few seconds each.
RUNS = {"blocks": 1500, "csr": 30000, "cubin": 200000, "entry": 30000, "expression": 8000, "npy": 40000, "pbm": 8000}
TARGETS = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c"))


def fuzz(name, artifacts, *arguments):
    program = PROGRAMS / f"fuzz_{name}"
    if not program.exists() and shutil.which("clang") is None:
        pytest.skip("clang is not installed")
    assert program.exists(), f"{program} is not there: build it with make fuzz"
    env = dict(os.environ, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS="print_stacktrace=1")
    options = ["-seed=1", "-max_len=1000", "-timeout=20", "-rss_limit_mb=2048", f"-artifact_prefix={artifacts}/{name}-"]
    done = subprocess.run(
        [program, *options, *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=400,
    )
    assert done.returncode == 0, f"inputs are kept in {artifacts}\n{done.stderr[-6000:]}"
    return done.stderr


@pytest.fixture
def artifacts():
    folder = PROGRAMS / "artifacts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_every_target_has_a_budget():
    assert TARGETS == sorted(RUNS)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds(name, artifacts):
    seeds = sorted(path for path in (HERE / "corpus" / name).iterdir())
    assert len(seeds) >= 5
    said = fuzz(name, artifacts, *seeds)
    assert said.count("Executed") == len(seeds)


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_made_from_seeds(name, artifacts, tmp_path):
    limit = "-max_total_time=60" if DEEP else f"-runs={RUNS[name]}"
    said = fuzz(name, artifacts, limit, tmp_path, HERE / "corpus" / name)
    assert "Done " in said
