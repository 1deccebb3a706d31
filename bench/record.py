"""What every JSON record of bench/ opens with: date, machine, driver, versions, commit; and how it is written."""
import datetime
import json
import os
import platform
import subprocess
import sys


def _output(*command):
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _first_line(text):
    return text.splitlines()[0].strip() if text else None


def commit_of(given=None):
    if given:
        return given
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    commit = _output("git", "-C", root, "rev-parse", "HEAD")
    if commit and _output("git", "-C", root, "status", "--porcelain", "--untracked-files=no"):
        commit += " with local changes"
    return commit


def _nvcc_version():
    for path in ("nvcc", "/usr/local/cuda/bin/nvcc"):
        text = _output(path, "--version")
        if text:
            return text.splitlines()[-1]
    return None


def metadata(lib, commit=None):
    """lib is a splat_ctypes.Splat or None; torch and jax are described when they are imported already."""
    meta = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "commit": commit_of(commit), "splat": lib.version() if lib else None, "python": platform.python_version(),
            "system": platform.platform(), "cpus": os.cpu_count(), "command": sys.argv}
    gpu = _first_line(_output("nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm,temperature.gpu,"
                              "power.limit", "--format=csv,noheader"))
    fields = [f.strip() for f in gpu.split(",")] if gpu else []
    if len(fields) == 6:
        keys = ("gpu", "driver", "sm_clock_now", "sm_clock_max", "temperature", "power_limit")
        meta.update(zip(keys, fields))
    else:
        try:
            meta["gpu"] = lib.device()[0] if lib else "none"
        except Exception as error:  # no GPU: recorded, not fatal
            meta["gpu"] = f"none ({error})"
    meta["nvcc"] = _nvcc_version()
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None:
        meta["torch"], meta["torch_cuda"] = torch.__version__, torch.version.cuda
        if torch.cuda.is_available():
            meta["cudnn"] = torch.backends.cudnn.version()
            meta["multiprocessors"] = torch.cuda.get_device_properties(0).multi_processor_count
    if jax is not None:
        meta["jax"] = jax.__version__
    return meta


def write(path, data):
    """Whole or not at all."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, default=str)
        file.write("\n")
    os.replace(temporary, path)
