"""Builds the wheel: the Python files, libsplat.so (made by the Makefile one folder up) and splat.h.

The wheel serves every Python 3 from 3.10 on of one platform: the library is called through ctypes.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent.parent


def version():
    header = (ROOT / "include" / "splat.h").read_text()
    return re.search(r'#define SPLAT_VERSION +"(.*)"', header)[1]


def make_library(folder):
    """Builds the shared library below `folder`; returns its path."""
    make = os.environ.get("MAKE", "make")
    if shutil.which(make) is None:
        sys.exit("splat: make is not on the PATH; the shared library is built with it, and with gcc or clang")
    folder.mkdir(parents=True, exist_ok=True)
    # What make says and keeps for its own callers is not for this build.
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "BUILD", "SAN")}
    jobs = max(1, min(8, len(os.sched_getaffinity(0))))
    # DEPS=library: of the packages that make asks for, only those that the library needs.
    command = [make, "-C", str(ROOT), f"-j{jobs}", f"BUILD={folder}", "WERROR=0", "DEPS=library", f"{folder}/libsplat.so"]
    if subprocess.run(command, env=environment).returncode:
        sys.exit(f"splat: the shared library could not be built; '{' '.join(command)}' says why, above")
    return (folder / "libsplat.so").resolve()


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):
            return  # the package finds what `make` builds in the tree
        package = pathlib.Path(self.build_lib) / "splat"
        package.mkdir(parents=True, exist_ok=True)
        made = make_library(pathlib.Path(self.get_finalized_command("build").build_temp).resolve() / "library")
        shutil.copyfile(made, package / "libsplat.so")
        shutil.copyfile(ROOT / "include" / "splat.h", package / "splat.h")

    def get_outputs(self, include_bytecode=True):
        package = os.path.join(self.build_lib, "splat")
        extra = [] if getattr(self, "editable_mode", False) else [os.path.join(package, n) for n in ("libsplat.so", "splat.h")]
        return super().get_outputs(include_bytecode) + extra


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(version=version(), cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel}, distclass=BinaryDistribution)
