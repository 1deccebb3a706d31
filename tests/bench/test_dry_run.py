"""Every implementation that PyTorch has on a CPU, checked against double precision by the benchmark itself."""

import json
import os
import subprocess
import sys

import pytest
from stand_in import ROOT

pytest.importorskip("torch", reason="the implementations are PyTorch's; without it their plumbing alone is tested")


def dry_run(tmp_path, *words):
    done = subprocess.run([sys.executable, str(ROOT / "bench" / "compare"), "run", *words, "--device", "cpu", "--rounds", "1",
                           "--out", str(tmp_path)], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    with open(tmp_path / "compare.json", encoding="utf-8") as file:
        data = json.load(file)
    return {tuple(str(v) for k, v in c["setting"].items() if k in ("kind", "op", "layout", "shape")): c["results"] for c in data["cells"]}


def right(results):
    return {n for n, r in results.items() if r["verdict"] == "ok"}


def test_kron(tmp_path):
    cells = dry_run(tmp_path, "kron", "--shape", "3,4,5,1", "1,16,32,3", "2,16,16,3", "--n", "33", "--op", "*", "--dtype", "fp32")
    assert len(cells) == 3 * 3 * 2
    for (_, shape, op, layout), results in cells.items():
        a, _, _, d = map(int, shape.split(","))
        expected = {"bmm_permute", "einsum", "dense", "csr"}
        expected |= {"bsr"} if op != "grad_weight" and shape != "3,4,5,1" else set()
        if layout == "batch_last" or d == 1:
            expected |= {"bmm_views" if a == 1 or d == 1 else "bmm_views_loop"}
        assert right(results) - {"splat"} == expected, (shape, op, layout, results)


def test_operators_on_masks(tmp_path):
    cells = dry_run(tmp_path, "attention", "sddmm", "softmax", "spmm*", "--pattern", "bigbird64", "--seq", "192", "--dim", "16",
                    "--heads", "2", "--dtype", "fp32", "--layout", "*")
    expected = {"attention": {"splat", "sdpa_mask"}, "sddmm": {"dense", "csr"}, "softmax": {"dense", "coo"},
                "spmm": {"dense", "dense_masked", "csr_heads"}, "spmm_transposed": {"dense", "dense_masked", "csr_heads"}}
    assert len(cells) == 9
    for (kind, *_), results in cells.items():
        assert right(results) - {"splat"} == expected[kind] - {"splat"}, (kind, results)
        assert kind != "attention" or "splat" in right(results)


def test_an_expression_of_ones_own(tmp_path):
    words = ("attention", "--pattern", "causal & window(9)", "--seq", "100", "--dim", "16", "--dtype", "fp32")
    (results,) = dry_run(tmp_path, *words).values()
    assert right(results) == {"splat", "sdpa_mask"}
