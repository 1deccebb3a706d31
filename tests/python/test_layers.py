"""Kronecker-sparse layers on NumPy arrays and PyTorch tensors (CPU engine), against dense matrices."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import splat

CASES = [[(2, 5, 7, 3)], [(1, 4, 6, 4)], [(3, 4, 2, 1)], [(4, 2, 2, 1), (2, 2, 2, 2), (1, 2, 2, 4)], [(6, 4, 8, 1), (1, 12, 4, 6)]]
NAMES = ["x".join("-".join(map(str, f)) for f in factors) for factors in CASES]


def dense(factor, values):
    a, b, c, d = factor
    made = np.zeros((a, b, d, a, c, d))
    for i in range(a):
        for j in range(d):
            made[i, :, j, i, :, j] = values[i, :, j, :]
    return made.reshape(a * b * d, a * c * d)


def numbers(shape, seed, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("factors", CASES, ids=NAMES)
@pytest.mark.parametrize("layout", ["batch_first", "batch_last"])
def test_numpy_forward_and_backward(factors, layout):
    layer = splat.Layer(factors, layout=layout)
    weights = [numbers((a, b, d, c), k) for k, (a, b, c, d) in enumerate(factors)]
    matrices = [dense(f, w.astype(np.float64)) for f, w in zip(factors, weights)]
    whole = np.linalg.multi_dot([np.eye(matrices[-1].shape[0]), *matrices[::-1]])
    assert (layer.outputs, layer.inputs) == whole.shape and layer.factors == factors
    turn = (lambda x: x) if layout == "batch_first" else (lambda x: np.ascontiguousarray(x.T))
    x, dy, bias = numbers((19, layer.inputs), 7), numbers((19, layer.outputs), 8), numbers(layer.outputs, 9)
    y = layer.forward(turn(x), weights, bias)
    np.testing.assert_allclose(turn(y), x @ whole.T + bias, rtol=1e-4, atol=1e-4)
    dx, gradients = layer.backward(turn(x), weights, turn(dy))
    np.testing.assert_allclose(turn(dx), dy @ whole, rtol=1e-4, atol=1e-4)
    inputs = [x.astype(np.float64)]
    for m in matrices:
        inputs.append(inputs[-1] @ m.T)
    g = dy.astype(np.float64)
    for k in reversed(range(len(factors))):
        full, (a, b, c, d) = g.T @ inputs[k], factors[k]
        want = np.einsum("ikjilj->ikjl", full.reshape(a, b, d, a, c, d))
        np.testing.assert_allclose(gradients[k], want, rtol=1e-3, atol=1e-3)
        g = g @ matrices[k]


def test_numpy_half_precision():
    layer = splat.Layer([(2, 4, 8, 2)], dtype="float16")
    w, x = numbers((2, 4, 2, 8), 1, np.float16), numbers((5, 32), 2, np.float16)
    y = layer.forward(x, [w])
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, x.astype(float) @ dense((2, 4, 8, 2), w.astype(float)).T, rtol=2e-3, atol=4e-3)


def test_patterns_serve_as_factors_and_others_are_refused():
    pattern = splat.pattern("blocks(8) & strided(2)", 32, 32)
    assert splat.Layer([pattern]).factors == [(4, 4, 4, 2)]
    with pytest.raises(splat.UnsupportedError, match=r"masks\[0\]: the mask is not Kronecker-sparse: row 1"):
        splat.Layer([splat.causal(q_len=8)])
    with pytest.raises(ValueError, match=r"masks\[1\] has 8 columns; it must have as many as masks\[0\] has rows, 16"):
        splat.Layer([(2, 4, 4, 2), (1, 8, 8, 1)])
    with pytest.raises(ValueError, match="factors is empty"):
        splat.Layer([])


def test_numpy_refusals():
    layer = splat.Layer([(2, 4, 8, 2)])
    w, x = np.zeros((2, 4, 2, 8)), np.zeros((5, 32))
    with pytest.raises(ValueError, match=r"x has the shape \(5, 31\)"):
        layer.forward(x[:, 1:], [w])
    with pytest.raises(ValueError, match=r"weights\[0\] has the shape \(2, 4, 2, 7\)"):
        layer.forward(x, [w[..., 1:]])
    with pytest.raises(ValueError, match="2 arrays of weights; the layer has 1"):
        layer.forward(x, [w, w])
    with pytest.raises(ValueError, match="bias has the shape"):
        layer.forward(x, [w], np.zeros(3))
    with pytest.raises(ValueError, match="x has 5 samples and dy 4"):
        layer.backward(x, [w], np.zeros((4, 16)))
    with pytest.raises(ValueError, match="dtype is 'float64'"):
        splat.Layer([(1, 1, 1, 1)], dtype="float64")


# ---- PyTorch ----


@pytest.mark.parametrize("factors", CASES, ids=NAMES)
@pytest.mark.parametrize("layout", ["batch_first", "batch_last"])
def test_torch_gradients(factors, layout):
    torch = pytest.importorskip("torch")
    import splat.torch

    layer = splat.torch.KronLinear(factors, layout=layout)
    with torch.no_grad():
        layer.bias.normal_()
    last = layout == "batch_last"
    x = torch.randn((layer.in_features, 11) if last else (11, layer.in_features), requires_grad=True)
    y = layer(x)
    dy = torch.randn_like(y)
    y.backward(dy)
    # The same with dense matrices in float64.
    x64 = x.detach().double().requires_grad_()
    w64 = [w.detach().double().requires_grad_() for w in layer.weights]
    b64 = layer.bias.detach().double().requires_grad_()
    h = x64.T if last else x64
    for (a, b, c, d), w in zip(factors, w64):
        h = torch.einsum("nilj,ikjl->nikj", h.reshape(-1, a, c, d), w).reshape(-1, a * b * d)
    want = h + b64
    want = want.T if last else want
    want.backward(dy.double())
    torch.testing.assert_close(y.double(), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad.double(), x64.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.bias.grad.double(), b64.grad, rtol=1e-4, atol=1e-4)
    for got, w in zip(layer.weights, w64):
        torch.testing.assert_close(got.grad.double(), w.grad, rtol=1e-3, atol=1e-3)


def test_torch_strides_shapes_and_dtypes():
    torch = pytest.importorskip("torch")
    import splat.torch

    factor = (2, 4, 8, 2)
    w = torch.randn(2, 4, 2, 8)
    wide = torch.randn(3, 5, 40)
    x = wide[..., 3:35]
    want = torch.einsum("...ilj,ikjl->...ikj", x.reshape(3, 5, 2, 8, 2), w).reshape(3, 5, 16)
    torch.testing.assert_close(splat.torch.kron_linear(x, [w], [factor]), want, rtol=1e-4, atol=1e-4)
    half = splat.torch.kron_linear(x.bfloat16(), [w.bfloat16()], [factor])
    assert half.dtype == torch.bfloat16 and half.shape == (3, 5, 16)
    torch.testing.assert_close(half.float(), want, rtol=3e-2, atol=1e-1)
    with pytest.raises(ValueError, match="x has 31 features; the factors take 32"):
        splat.torch.kron_linear(x[..., 1:], [w], [factor])
    with pytest.raises(ValueError, match=r"weights\[0\] is"):
        splat.torch.kron_linear(x, [w.half()], [factor])
    with pytest.raises(ValueError, match="it must be float16, bfloat16 or float32"):
        splat.torch.kron_linear(x.double(), [w], [factor])
    with pytest.raises(ValueError, match="at least one sample"):
        splat.torch.kron_linear(x[:0], [w], [factor])


def test_example():
    pytest.importorskip("torch")
    root = pathlib.Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, root / "examples" / "kron_layer.py", "--small"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(root / "python")}, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rsplit(None, 1)[1]) < 1e-3
