"""The package is used where it lies, with the library that SPLAT_LIB names or that lies in build/."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "property"), str(ROOT / "tests" / "python")]
os.environ.setdefault("SPLAT_LIB", str(ROOT / "build" / "libsplat.so"))
# Before JAX is imported: four devices on the CPU, for shard_map.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
