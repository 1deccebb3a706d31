"""splatc run on the CPU: round trips of --q --k --v --out --lse against NumPy in float64, --check, --json, refusals."""

import json

import numpy as np
import pytest


def reference(q, k, v, mask, scale):
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    scores = np.where(mask, q @ k.transpose(0, 1, 3, 2) * scale, -np.inf)
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    return weights / np.where(total > 0, total, 1) @ v, lse


def problem(tmp_path, dtype=np.float32, batch=2, heads=4, kv_heads=2, q_len=70, kv_len=90, dim=40, value_dim=24, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"q": (heads, q_len, dim), "k": (kv_heads, kv_len, dim), "v": (kv_heads, kv_len, value_dim)}
    arrays = {}
    for name, shape in shapes.items():
        arrays[name] = rng.standard_normal((batch, *shape)).astype(dtype)
        np.save(tmp_path / f"{name}.npy", arrays[name])
    return arrays["q"], arrays["k"], arrays["v"]


FILES = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", "--lse", "lse.npy", "--device", "cpu"]


@pytest.mark.parametrize("dtype, tolerance", [("fp32", 2e-5), ("fp16", 4e-3), ("bf16", 4e-2)])
@pytest.mark.parametrize("stored", [np.float32, np.float16])
def test_round_trip(splatc, tmp_path, dtype, tolerance, stored):
    q, k, v = problem(tmp_path, stored)
    i, j = np.arange(70)[:, None], np.arange(90)[None, :]
    mask = (j <= i + 20) & ((i - j) % 3 == 0) & (i != 33)
    splatc("run", *FILES, "--pattern", "causal & strided(3) - rows(33, 34)", "--seq", 70, "--kv-seq", 90, "--dtype", dtype)
    o, lse = np.load(tmp_path / "o.npy"), np.load(tmp_path / "lse.npy")
    assert o.dtype == np.float32 and lse.dtype == np.float32
    assert o.shape == (2, 4, 70, 24) and lse.shape == (2, 4, 70)
    want, want_lse = reference(q, k, v, mask, 1 / np.sqrt(40))
    np.testing.assert_allclose(o, want, atol=tolerance, rtol=tolerance)
    assert np.all(o[:, :, 33] == 0) and np.all(lse[:, :, 33] == -np.inf)
    alive = np.arange(70) != 33
    np.testing.assert_allclose(lse[:, :, alive], want_lse[:, :, alive], atol=tolerance, rtol=tolerance)


def test_scale_and_mask_file(splatc, tmp_path):
    q, k, v = problem(tmp_path, batch=1, heads=3, kv_heads=3, q_len=33, kv_len=65, dim=8, value_dim=8)
    mask = np.random.default_rng(5).random((33, 65)) < 0.2
    np.save(tmp_path / "m.npy", mask)
    splatc("run", *FILES, "--mask", "m.npy", "--dtype", "fp32", "--scale", "0.75")
    want, want_lse = reference(q, k, v, mask, 0.75)
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), want, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "lse.npy"), want_lse, atol=1e-5, rtol=1e-5)


def test_the_same_seed_gives_the_same_output(splatc, tmp_path):
    common = ["run", "--device", "cpu", "--pattern", "window(9)", "--seq", 100, "--heads", 2, "--head-dim", 16]
    outputs = []
    for seed in (7, 7, 8):
        splatc(*common, "--seed", seed, "--out", "o.npy")
        outputs.append((tmp_path / "o.npy").read_bytes())
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("pattern", ["causal", "full - full", "window(256) | rows(0, 64) | cols(0, 64)", "strided(7) - rows(0, 9)"])
def test_check_passes(splatc, dtype, pattern):
    done = splatc("run", "--device", "cpu", "--pattern", pattern, "--seq", 333, "--dtype", dtype, "--check", "--json",
                  "--heads", 6, "--kv-heads", 2, "--batch", 2, "--head-dim", 72)
    facts = json.loads(done.stdout)
    assert facts["device"] == "cpu"


@pytest.mark.parametrize("op", ["sddmm", "softmax", "spmm", "spmm_transposed"])
def test_operators_on_values_pass_their_check(splatc, op):
    for dtype, pattern in (("fp32", "causal & (window(20, 0) | strided(7))"), ("bf16", "full - full"), ("fp16", "window(30)")):
        done = splatc("run", "--op", op, "--device", "cpu", "--pattern", pattern, "--seq", 133, "--kv-seq", 150, "--dtype", dtype,
                      "--check", "--json", "--heads", 4, "--kv-heads", 2, "--batch", 2, "--head-dim", 24, "--repeat", 1)
        facts = json.loads(done.stdout)
        assert facts["op"] == op and facts["check"]["ok"] and facts["device"] == "cpu"
    text = splatc("run", "--op", op, "--device", "cpu", "--pattern", "causal", "--seq", 64, "--check", "--repeat", 1).stdout
    assert "GB/s" in text and "0 wrong" in text and op in text


@pytest.mark.parametrize("op", ["sddmm", "softmax", "spmm", "spmm_transposed"])
def test_operators_have_every_stage(splatc, op):
    common = ["--op", op, "--pattern", "dilated(60, 4)", "--seq", 512, "--arch", "sm_80"]
    assert f"op             {op}" in splatc("dump", *common, "--stage", "spec").stdout
    assert "__global__" in splatc("dump", *common).stdout
    assert "row tiles" in splatc("explain", *common).stdout


def test_check_takes_nan_where_the_reference_has_it(splatc, tmp_path):
    q, k, v = problem(tmp_path, batch=1, heads=1, kv_heads=1, q_len=16, kv_len=16, dim=8, value_dim=8)
    q[0, 0, 0, 0] = np.nan
    np.save(tmp_path / "q.npy", q)
    done = splatc("run", *FILES, "--pattern", "causal", "--seq", 16, "--dtype", "fp32", "--check", "--json")
    assert json.loads(done.stdout)["check"]["wrong"] == 0
    o, lse = np.load(tmp_path / "o.npy"), np.load(tmp_path / "lse.npy")
    assert np.isnan(o[:, :, 0]).all() and np.isnan(lse[:, :, 0]).all() and np.isfinite(o[:, :, 1:]).all()


def test_check_fails_loudly_on_nan_on_one_side(splatc, tmp_path):
    q, k, v = problem(tmp_path, batch=1, heads=1, kv_heads=1, q_len=16, kv_len=16, dim=8, value_dim=8)
    np.save(tmp_path / "q.npy", np.full_like(q, 1e30))  # the scores fit double, not float
    np.save(tmp_path / "k.npy", np.full_like(k, 1e30))
    done = splatc("run", *FILES, "--pattern", "causal", "--seq", 16, "--dtype", "fp32", "--check", expect=1)
    assert "check failed" in done.stderr and "nan" in done.stderr.lower()


def test_masked_keys_may_hold_nan(splatc, tmp_path):
    q, k, v = problem(tmp_path, batch=1, heads=1, kv_heads=1, q_len=50, kv_len=50, dim=8, value_dim=8)
    k[:, :, 10:20] = np.nan
    v[:, :, 10:20] = np.inf
    np.save(tmp_path / "k.npy", k)
    np.save(tmp_path / "v.npy", v)
    splatc("run", *FILES, "--pattern", "full - cols(10, 20)", "--seq", 50, "--dtype", "fp32", "--check")
    mask = np.ones((50, 50), bool)
    mask[:, 10:20] = False
    k[:, :, 10:20] = v[:, :, 10:20] = 0
    want, _ = reference(q, k, v, mask, 1 / np.sqrt(8))
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), want, atol=1e-5)


def test_text_says_time_and_rate(splatc):
    text = splatc("run", "--device", "cpu", "--pattern", "causal", "--seq", 256, "--check").stdout
    assert "TFLOP/s" in text and "ms" in text


def test_auto_without_a_gpu_is_the_cpu(splatc):
    done = splatc("run", "--pattern", "causal", "--seq", 64, "--json", expect=None)
    if done.returncode == 0:
        assert json.loads(done.stdout)["device"] in ("cpu", "gpu")
    else:
        pytest.fail(done.stderr)


def test_inputs_must_fit(splatc, tmp_path):
    problem(tmp_path)
    pattern = ["--pattern", "full", "--seq", 70, "--kv-seq", 90]

    def refused(*words, **replaced):
        for name, array in replaced.items():
            np.save(tmp_path / f"{name}.npy", array)
        done = splatc("run", *FILES, *pattern, expect=2)
        for word in words:
            assert word in done.stderr, done.stderr
        assert not (tmp_path / "o.npy").exists() and not (tmp_path / "lse.npy").exists()
        problem(tmp_path)

    refused("q.npy", "70", "71", q=np.zeros((2, 4, 71, 40), np.float32))
    refused("k.npy", "90", "91", k=np.zeros((2, 2, 91, 40), np.float32))
    refused("v.npy", v=np.zeros((2, 2, 91, 24), np.float32))
    refused("k.npy", "40", "48", k=np.zeros((2, 2, 90, 48), np.float32))
    refused("3", "4", k=np.zeros((2, 3, 90, 40), np.float32), v=np.zeros((2, 3, 90, 24), np.float32))
    refused("v.npy", "2", "1", v=np.zeros((2, 1, 90, 24), np.float32))
    refused("k.npy", k=np.zeros((1, 2, 90, 40), np.float32))
    refused("q.npy", "4", "3", q=np.zeros((4, 70, 40), np.float32))
    refused("q.npy", "<f8", "float64", "float32", q=np.zeros((2, 4, 70, 40)))
    refused("q.npy", "|b1", q=np.zeros((2, 4, 70, 40), bool))
    refused("head", "44", q=np.zeros((2, 4, 70, 44), np.float32), k=np.zeros((2, 2, 90, 44), np.float32))


def test_options_must_agree_with_the_files(splatc, tmp_path):
    problem(tmp_path)
    pattern = ["--pattern", "full", "--seq", 70, "--kv-seq", 90]
    splatc("run", *FILES, *pattern, "--heads", 4, "--batch", 2, "--head-dim", 40)
    for option, value in (("--heads", 8), ("--batch", 3), ("--head-dim", 48), ("--kv-heads", 4), ("--value-dim", 40)):
        done = splatc("run", *FILES, *pattern, option, value, expect=2)
        assert option in done.stderr and str(value) in done.stderr, done.stderr


def test_lengths_of_the_files_must_be_the_masks(splatc, tmp_path):
    problem(tmp_path)
    for shape, words in (((71, 90), ["q.npy", "70", "71"]), ((70, 91), ["k.npy", "90", "91"])):
        np.save(tmp_path / "m.npy", np.ones(shape, bool))
        done = splatc("run", *FILES, "--mask", "m.npy", expect=2)
        for word in ["m.npy", *words]:
            assert word in done.stderr, done.stderr
        assert "--seq" not in done.stderr and "--kv-seq" not in done.stderr, "no such option was given"


def test_outputs_are_checked_before_the_work(splatc, tmp_path):
    # A problem that would take minutes, so that a late check shows.
    common = ["run", "--device", "cpu", "--pattern", "full", "--seq", 32768, "--heads", 64, "--threads", 1]
    for option in ("--out", "--lse"):
        done = splatc(*common, option, "no/such/x.npy", expect=1)
        assert "no/such/x.npy" in done.stderr and "No such file" in done.stderr
        done = splatc(*common, option, tmp_path, expect=1)
        assert "Is a directory" in done.stderr
        done = splatc(*common, option, "-", "--json", expect=2)
        assert option in done.stderr and "--json" in done.stderr and done.stdout == ""
    done = splatc(*common, "--out", "-", "--lse", "-", expect=2)
    assert "--out" in done.stderr and "--lse" in done.stderr and done.stdout == ""
    assert [p.name for p in tmp_path.iterdir()] == ["home"], "the check leaves nothing behind"


def test_an_array_on_stdout_is_alone_there(splatc_path, tmp_path):
    import io
    import subprocess

    command = [splatc_path, "run", "--device", "cpu", "--pattern", "causal", "--seq", "9", "--head-dim", "8", "--out", "-"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=True)
    stream = io.BytesIO(done.stdout)
    assert np.load(stream).shape == (1, 1, 9, 8) and stream.read() == b""
    assert b"TFLOP/s" in done.stderr
