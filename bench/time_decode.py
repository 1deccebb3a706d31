"""Times a few queries before a long cache beside cuDNN and FlashAttention-2 (through PyTorch) in one run.

    python3 bench/time_decode.py --out bench/results/decode.json

Each case is [batch, heads, kv_heads, queries, keys, window]; the mask is causal, bottom right, within the window if there is one.
The floor is the keys and values that are needed, moved once at the rate of a device copy of this run.
"""
import argparse
import sys
import time

import torch

import record
import reference
import splat_ctypes
import timing

CASES = [(1, 32, 8, 1, 8192, 0), (1, 32, 8, 1, 32768, 0), (1, 32, 8, 1, 131072, 0), (8, 32, 8, 1, 8192, 0),
         (32, 32, 8, 1, 8192, 0), (1, 32, 32, 1, 32768, 0), (1, 64, 8, 4, 32768, 0), (4, 32, 8, 16, 16384, 0),
         (1, 16, 1, 1, 65536, 0), (8, 32, 8, 1, 32768, 4096), (64, 32, 8, 1, 1024, 0)]


def sdpa(backend, sets, allowed):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kind = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}[backend]

    def call(n):
        q, k, v = sets[n][:3]
        with sdpa_kernel(kind):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed,
                                                                    enable_gqa=q.shape[1] != k.shape[1])
    return call


def run(lib, context, case, dim, rounds, copy_bytes):
    batch, heads, kv_heads, q_len, kv_len, window = case
    out = {"case": case, "dim": dim, "errors": {}, "agree": {}}
    make = lambda h, n: torch.randn(batch, h, n, dim, device="cuda", dtype=torch.bfloat16)
    one = 2 * 2 * batch * kv_heads * kv_len * dim
    count = max(2, min(8, (1 << 28) // one + 1))  # more than L2 holds
    sets = [(make(heads, q_len), make(kv_heads, kv_len), make(kv_heads, kv_len),
             torch.full((batch, heads, q_len, dim), float("nan"), device="cuda", dtype=torch.bfloat16),
             torch.full((batch, heads, q_len), float("nan"), device="cuda")) for _ in range(count)]
    text = "causal" + (f" & window({window - 1}, 0)" if window else "")
    mask = lib.expression(text, q_len, kv_len)
    began = time.perf_counter()
    kernel = context.compile(mask, dtype=splat_ctypes.BF16, head_dim=dim, batch=batch, heads=heads, kv_heads=kv_heads,
                             device=splat_ctypes.DEVICE_GPU)
    out["compile_ms"] = (time.perf_counter() - began) * 1e3
    out["plan"] = kernel.plan_info()
    size = kernel.workspace_bytes(batch, heads)
    workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
    out["workspace_bytes"] = size
    calls = [lib.args(*s, workspace=workspace) for s in sets]

    def splat(n):
        kernel.run(calls[n], torch.cuda.current_stream().cuda_stream)
        return sets[n][3]

    for n in range(count):
        splat(n)
    torch.cuda.synchronize()
    rows = torch.arange(q_len, device="cuda")
    allowed = torch.tensor([list(row) for row in mask.rows(range(q_len))], dtype=torch.bool, device="cuda")
    ref = reference.attention(*sets[0][:3], allowed, rows, dim**-0.5)
    out["problems"] = reference.differences(sets[0][3], sets[0][4], *ref, torch.bfloat16)
    timed = [timing.Timed("splat", splat, count)]
    for name in ("cudnn", "fa2"):
        try:
            call = sdpa(name, sets, None if q_len == 1 and not window else allowed[None, None])
            got = call(0).float()
            out["agree"][name] = float((got - sets[0][3].float()).norm() / got.norm())
            timed.append(timing.Timed(name, call, count))
        except Exception as error:
            out["errors"][name] = f"{type(error).__name__}: {str(error)[:200]}"
    out["times"] = timing.alternate(timed, rounds, 6.0)
    keys = min(kv_len, window + q_len - 1) if window else kv_len
    out["floor_ms"] = 2 * 2 * batch * kv_heads * keys * dim / copy_bytes * 1e3
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib")
    parser.add_argument("--out", default="decode.json")
    parser.add_argument("--commit")
    parser.add_argument("--dims", type=int, nargs="+", default=[128])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    lib = splat_ctypes.Splat(args.lib)
    torch.zeros(1, device="cuda")
    context = lib.context()
    data = {"kind": "decode", "meta": record.metadata(lib, args.commit), "results": [], "ceilings": timing.ceilings(3)}
    print(f"copy {data['ceilings']['copy_bytes'] / 1e12:.2f} TB/s")
    print("batch heads kv q keys window   D    floor    splat   cuDNN     FA2   (us)")
    for dim in args.dims:
        for case in CASES:
            out = run(lib, context, case, dim, args.rounds, data["ceilings"]["copy_bytes"])
            data["results"].append(out)
            show = lambda n: f"{out['times'][n]['ms'] * 1e3:8.1f}" if "ms" in out["times"].get(n, {}) else "       -"
            print(" ".join(str(x) for x in case), f"  {dim}  {out['floor_ms'] * 1e3:8.1f} {show('splat')} {show('cudnn')} "
                  f"{show('fa2')}", *out["problems"], *[f"{n}: {e}" for n, e in out["errors"].items()][:1], flush=True)
            record.write(args.out, data)
    return 1 if any(r["problems"] for r in data["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
