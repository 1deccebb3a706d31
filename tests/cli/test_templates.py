"""Every template is complete CUDA that compiles on its own, with its default parameters."""
import pathlib
import shutil
import subprocess

import pytest

TEMPLATES = pathlib.Path(__file__).resolve().parents[2] / "templates"
SM80, SM90 = "arch=compute_80,code=sm_80", "arch=compute_90a,code=sm_90a"
ARCHS = {"attention_sm80.cuh": SM80, "attention_sm90.cuh": SM90, "sddmm_sm80.cuh": SM80, "spmm_sm80.cuh": SM80, "softmax_rows.cuh": SM80,
         "kron_sm80.cuh": SM80, "kron_sm90.cuh": SM90, "kron_small.cuh": SM80, "kron_sum.cuh": SM80}  # fmt: skip


def test_each_has_an_arch():
    whole = [p.name for p in TEMPLATES.glob("*.cuh") if "splat:region(ptx)" in p.read_text()]
    assert sorted(whole) == sorted(ARCHS)


@pytest.mark.parametrize("name", ARCHS)
def test_compiles_alone(name, tmp_path):
    nvcc = shutil.which("nvcc")
    if not nvcc:
        pytest.skip("nvcc is not on PATH")
    done = subprocess.run([nvcc, "-x", "cu", "-std=c++17", "-gencode=" + ARCHS[name], "-cubin", "-o", tmp_path / "k.cubin",
                           TEMPLATES / name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
