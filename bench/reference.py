"""Attention in float64 from the rounded inputs, and the comparison every check goes through.

Masked keys are removed before anything is multiplied, so NaN and Inf there cannot reach the reference; a NaN in V shows
in exactly the rows that may attend to its key. Works on any torch device.
"""
import math

import torch

INF = float("inf")
# largest error over the largest |reference|, relative Frobenius norm
TOLERANCE = {torch.float16: (2e-3, 1e-3), torch.bfloat16: (1e-2, 6e-3), torch.float32: (2e-5, 1e-5)}
LSE_ABSOLUTE, LSE_RELATIVE = 1e-3, 1e-6


def attention(q, k, v, allowed, rows, scale):
    """o [B, H, n, Dv], lse [B, H, n] (float64) of query rows `rows`; allowed is bool and broadcasts to [B, H, n, S]."""
    group = q.shape[1] // k.shape[1]
    q64 = q[:, :, rows].double()
    k64 = k.double().repeat_interleave(group, dim=1)
    v64 = v.double().repeat_interleave(group, dim=1)
    scores = torch.matmul(q64, k64.transpose(-1, -2)) * scale
    allowed = allowed.expand(scores.shape)
    scores = torch.where(allowed, scores, -INF)
    top = scores.amax(-1, keepdim=True)
    p = torch.exp(scores - torch.where(torch.isfinite(top), top, 0.0))
    total = p.sum(-1, keepdim=True)
    out = torch.matmul(p / torch.where(total > 0, total, 1.0), torch.where(torch.isfinite(v64), v64, 0.0))
    lse = torch.where(total > 0, torch.log(total) + top, -INF)[..., 0]
    bad = torch.isnan(v64)
    if bad.any():
        out = torch.where(torch.matmul(allowed.double(), bad.double()) > 0, float("nan"), out)
    return out, lse


def errors(out, ref_out):
    """The largest difference and the Frobenius norm of all of them, both over those of the reference."""
    error = out.double() - ref_out
    return {"max": float(error.abs().max() / ref_out.abs().max()), "frobenius": float(error.norm() / ref_out.norm())}


def differences(out, lse, ref_out, ref_lse, dtype, loosen=1.0):
    """Sentences on how (out, lse) differ from the reference beyond the tolerance; none when they agree."""
    problems = []
    limit, frobenius = (t * loosen for t in TOLERANCE[dtype])
    out = out.double()
    nan, ref_nan = torch.isnan(out), torch.isnan(ref_out)
    if not torch.equal(nan, ref_nan):
        extra, missing = int((nan & ~ref_nan).sum()), int((ref_nan & ~nan).sum())
        problems.append(f"NaN in o: {extra} unexpected, {missing} missing, first at {first(nan != ref_nan)}")
    clean = ~(nan | ref_nan)
    a, b = torch.where(clean, out, 0.0), torch.where(clean, ref_out, 0.0)
    error, top = (a - b).abs(), float(b.abs().max()) if b.numel() else 0.0
    worst = float(error.max()) if error.numel() else 0.0
    if not worst <= limit * top:
        problems.append(f"o is off by {worst:.3g} where the largest |o| is {top:.3g} (limit {limit:g} of it), "
                        f"at {first(error == error.max())}")
    norm = float(b.norm())
    if norm > 0 and not float((a - b).norm()) <= frobenius * norm:
        problems.append(f"relative Frobenius error of o is {float((a - b).norm()) / norm:.3g} (limit {frobenius:g})")
    if lse is not None:
        problems += lse_differences(lse.double(), ref_lse, loosen)
    return problems


def lse_differences(lse, ref_lse, loosen):
    problems = []
    if torch.isnan(lse).any():
        problems.append(f"{int(torch.isnan(lse).sum())} NaN in lse, first at {first(torch.isnan(lse))}")
    empty, ref_empty = lse == -INF, ref_lse == -INF
    if not torch.equal(empty, ref_empty):
        problems.append(f"lse is -inf in {int(empty.sum())} rows, expected in {int(ref_empty.sum())}, first wrong at "
                        f"{first(empty != ref_empty)}")
    both = ~(empty | ref_empty | torch.isnan(lse))
    error = torch.where(both, (lse - ref_lse).abs() - LSE_RELATIVE * ref_lse.abs(), 0.0)
    error = torch.nan_to_num(error, nan=0.0)
    if error.numel() and not float(error.max()) <= LSE_ABSOLUTE * loosen:
        problems.append(f"lse is off by {float(error.max()):.3g}, at {first(error == error.max())}")
    return problems


def first(where):
    found = where.nonzero()
    return found[0].tolist() if len(found) else None


def default_scale(q):
    return 1.0 / math.sqrt(q.shape[-1])
