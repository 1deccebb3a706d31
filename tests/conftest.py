"""Shared by the Python tests: where the built tool and library are, and a Hypothesis profile that repeats exactly.

SPLATC names the tool and SPLAT_LIB the shared library; without them they are looked for in build/.
"""

import os
import pathlib
import subprocess

import hypothesis
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("ci")


@pytest.fixture(scope="session")
def splatc_path():
    path = pathlib.Path(os.environ.get("SPLATC", ROOT / "build" / "splatc")).resolve()
    assert path.exists(), f"{path} is not there: build it with make, or set SPLATC"
    return path


@pytest.fixture
def splatc(splatc_path, tmp_path):
    """Runs splatc in an empty folder with an empty cache; returns the finished process, output as text."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)

    def run(*arguments, expect=0, cwd=None, env=None, stdin=None):
        keep = ("SPLAT_NVRTC",)  # where NVRTC is, when it is in no standard place
        environment = {k: v for k, v in os.environ.items() if k in keep or not k.startswith(("SPLAT_", "XDG_"))}
        environment["HOME"] = str(home)
        environment.update(env or {})
        done = subprocess.run(
            [str(splatc_path), *map(str, arguments)],
            cwd=cwd or tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
        )
        if expect is not None:
            assert done.returncode == expect, (arguments, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done

    run.home = home
    return run
