"""Builds and loads _xla.c, the custom call's handlers, against the header that the installed jaxlib ships.

`$SPLAT_JAX_SHIM` names a library that was built before. Else it is looked for in splat's cache folder under a name that
depends on the source, both headers and the machine, and built there with the C compiler (`$CC`, cc, gcc or clang) when it is
not there: a fraction of a second, once for each jaxlib. A folder that others may write is not used, for the library is code.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile

_HERE = pathlib.Path(__file__).resolve().parent
_HEADER = pathlib.Path("xla", "ffi", "api", "c_api.h")


def _splat_header() -> pathlib.Path:
    bundled = _HERE / "splat.h"
    return bundled if bundled.exists() else _HERE.parent.parent / "include" / "splat.h"


def _cache_folder() -> pathlib.Path | None:
    """The cache folder, when it may be written and is nobody else's."""
    if os.environ.get("SPLAT_CACHE") in ("off", "ro"):
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = pathlib.Path(os.environ.get("SPLAT_CACHE_DIR") or os.path.join(base, "splat"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    mine = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if mine and os.access(folder, os.W_OK) else None


def _compiler() -> str:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name
    raise ImportError(
        "splat.jax: no C compiler is on the PATH (cc, gcc or clang); its custom call is compiled once for each jaxlib. Install "
        "one, or set SPLAT_JAX_SHIM to a library that was built on another machine"
    )


def build(target: pathlib.Path, include: str) -> None:
    """Compiles the handlers to `target`; `include` is ``jax.ffi.include_dir()``."""
    header = _splat_header()
    command = [
        *_compiler().split(), "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-I", str(header.parent),
        "-I", include, str(_HERE / "_xla.c"), "-o", str(target), "-ldl", "-lpthread", "-lm",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ImportError(
            f"splat.jax: the custom call did not compile; {' '.join(command)} said: {done.stderr.strip()[-2000:]}"
        )


def _digest(include: str) -> str:
    digest = hashlib.sha256(platform.machine().encode())
    for path in (_HERE / "_xla.c", _splat_header(), pathlib.Path(include) / _HEADER):
        try:
            digest.update(path.read_bytes())
        except OSError as error:
            raise ImportError(
                f"splat.jax: {path} cannot be read ({error.strerror}); jaxlib 0.4.31 and later ship their header"
            ) from None
    return digest.hexdigest()[:32]


def load(include: str) -> ctypes.CDLL:
    """The loaded handlers."""
    given = os.environ.get("SPLAT_JAX_SHIM")
    if given:
        return ctypes.CDLL(given)
    folder = _cache_folder()
    path = folder / f"xla-{_digest(include)}.so" if folder else None
    if path is not None and path.exists():
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            pass  # damaged: made anew
    # In a folder of its own, then renamed: another process may be doing the same.
    with tempfile.TemporaryDirectory(prefix="splat-xla-", dir=folder) as name:
        made = pathlib.Path(name) / "xla.so"
        build(made, include)
        if path is not None:
            os.replace(made, path)
        return ctypes.CDLL(str(path or made))


def main() -> None:
    """``python -m splat._xla_build FILE`` builds the handlers for the installed jaxlib, for SPLAT_JAX_SHIM."""
    import sys

    import jax

    if len(sys.argv) != 2:
        sys.exit("usage: python -m splat._xla_build FILE.so")
    build(pathlib.Path(sys.argv[1]), jax.ffi.include_dir())


if __name__ == "__main__":
    main()
