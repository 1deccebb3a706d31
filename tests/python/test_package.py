"""The package as it is installed: struct layouts, the wheel, type hints' marker, examples."""

import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
from splat import _library

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CC = os.environ.get("CC") or "cc"


def test_structs_are_laid_out_as_the_compiler_does(tmp_path):
    fields = [(name, field[0]) for name, struct in _library.STRUCTS.items() for field in struct._fields_ if field[0] != "room"]
    lines = "".join(f'printf("%s %s %zu\\n", "{name}", "{field}", offsetof({name}, {field}));' for name, field in fields)
    sizes = "".join(f'printf("%s size %zu\\n", "{name}", sizeof({name}));' for name in _library.STRUCTS)
    source = tmp_path / "layout.c"
    source.write_text(f"#include <stdio.h>\n#include <splat.h>\nint main(void) {{ {lines} {sizes} return 0; }}\n")
    subprocess.run([*CC.split(), "-I", ROOT / "include", source, "-o", tmp_path / "layout"], check=True)
    seen = 0
    for line in subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout.splitlines():
        name, field, number = line.split()
        struct = _library.STRUCTS[name]
        if field != "size":
            assert getattr(struct, field).offset == int(number), f"{name}.{field}"
        elif hasattr(struct, "room"):
            assert struct.room.offset >= int(number) - 7 and struct.room.size >= 64, (
                f"{name} has a field that is not known here"
            )
        seen += 1
    assert seen == len(fields) + len(_library.STRUCTS)


def test_numbers_are_those_of_the_header():
    header = (ROOT / "include" / "splat.h").read_text()
    assert re.search(rf'#define SPLAT_VERSION\s+"{_library.VERSION}"', header)
    for name, body in re.findall(r"enum (splat_\w+) \{(.*?)\}", header, re.S):
        numbers, value = {}, -1
        for constant in re.sub(r"/\*.*?\*/", "", body, flags=re.S).split(","):
            if constant.strip():
                word, _, given = constant.partition("=")
                value = int(given) if given else value + 1
                numbers[word.strip()] = value
        ours = {
            "splat_status": {f"SPLAT_{n}": getattr(_library, n) for n in
                             ("OK", "INVALID", "UNSUPPORTED", "NO_MEMORY", "IO", "NO_DEVICE", "COMPILE", "CUDA", "INTERNAL")},
            "splat_align": {"SPLAT_ALIGN_BOTTOM_RIGHT": 0, "SPLAT_ALIGN_TOP_LEFT": 1},
            "splat_dtype": {"SPLAT_FP16": _library.FP16, "SPLAT_BF16": _library.BF16, "SPLAT_FP32": _library.FP32},
            "splat_device": {f"SPLAT_DEVICE_{n.upper()}": v for n, v in _library.DEVICES.items()},
            "splat_set_op": {"SPLAT_UNION": 0, "SPLAT_INTERSECTION": 1, "SPLAT_DIFFERENCE": 2},
            "splat_stage": {f"SPLAT_STAGE_{n.upper()}": v for n, v in _library.STAGES.items()},
            "splat_arch": {"SPLAT_ARCH_AUTO": 0, "SPLAT_ARCH_SM80": 80, "SPLAT_ARCH_SM90A": 90},
        }.get(name)  # fmt: skip
        if ours is not None:
            assert numbers == ours, name


def test_the_wheel_brings_the_library_and_works_alone(tmp_path):
    """Built without the network, unpacked, and used away from this tree, with no SPLAT_LIB."""
    pytest.importorskip("setuptools")
    pytest.importorskip("wheel")
    environment = {k: v for k, v in os.environ.items() if k not in ("SPLAT_LIB", "PYTHONPATH", "BUILD", "SAN", "MAKEFLAGS")}
    tree = tmp_path / "tree"  # a copy: a build leaves folders behind
    names = ("Makefile", "include", "src", "templates", "tools", "python", "splat.pc.in")
    tree.mkdir()
    for name in names:
        subprocess.run(["cp", "-r", ROOT / name, tree / name], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps",
               "--no-build-isolation", "--wheel-dir", tmp_path, tree / "python"]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    assert re.fullmatch(rf"splat-{re.escape(_library.VERSION)}-py3-none-linux_\w+\.whl", wheel.name)
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert {p.name for p in (site / "splat").iterdir()} >= {
        "libsplat.so",
        "splat.h",
        "_xla.c",
        "py.typed",
        "jax.py",
        "torch.py",
    }
    code = (
        "import numpy as np, splat, sys; assert str(splat.library_path()).startswith(sys.argv[1]), splat.library_path();"
        "x = np.ones((1, 1, 64, 16), np.float32); assert splat.attention(x, x, x, 'causal').sum() == 1024"
    )
    environment["PYTHONPATH"] = str(site)
    done = subprocess.run(
        [sys.executable, "-c", code, str(site)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path):
    """Each runs to its end, small, where its framework is installed; without it, it says so and ends with 3."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run([sys.executable, path, "--small"], env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0 and done.stdout.strip(), done.stdout + done.stderr[-3000:]


def test_every_public_name_has_a_docstring_and_hints():
    import inspect

    import splat

    for name in splat.__all__:
        thing = getattr(splat, name)
        if callable(thing):
            assert thing.__doc__, name
            if inspect.isfunction(thing):
                hints = inspect.signature(thing)
                typed = all(p.annotation is not p.empty for p in hints.parameters.values())
                assert name == "attention" or (typed and hints.return_annotation is not hints.empty), name
