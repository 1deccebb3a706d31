"""Times SDDMM, SpMM, SpMM with A^T and the softmax of rows on the GPU beside dense torch and cuSPARSE.

Peers, all on the same inputs: SDDMM: torch.matmul and a masked fill; torch.sparse.sampled_addmm. SpMM: "dense", torch.matmul with the
dense matrix, whose zeros are already there; "dense masked", the same after a product of the matrix with the boolean mask, which is what a
matrix takes that is not zero yet where the mask forbids; torch.sparse CSR and BSR times dense, a product for each (batch, head). Softmax:
torch.softmax of the dense matrix with -inf. Geometric means of SpMM are given twice, over the best peer that is given the zeros and over the
best that masks. Launches are replayed from CUDA graphs over rotating inputs beyond the L2 cache, rounds alternate between the
implementations; medians. A peer that cannot run says why in the JSON. "floor" is the time to move values and tensors once.

    python3 bench/time_ops.py --out $OUT/time-ops.json
    python3 bench/time_ops.py --seq 2048 --dims 128 --ops sddmm --masks 'causal'
    python3 bench/time_ops.py --peers dense,masked      # without the sparse formats of torch, which take long
"""
import argparse
import json
import math
import os
import warnings

import torch

import record
import splat_ctypes as s
import timing

MASKS = ["causal", "window(409, 0) | cols(0, 64)", "blocks(512)", "causal & (blocks(256) | strided(4))", "strided(4)",
         "random_blocks(64, 10, 1)", "random 20"]
COPY_BYTES = 4.26e12
MASKED = "dense masked"
OPS = {"sddmm": s.SDDMM, "spmm": s.SPMM, "spmm_t": s.SPMM_TRANSPOSED, "softmax": s.SOFTMAX}


def device_bytes(value):
    return sum(t.numel() * t.element_size() for t in value if t is not None)


class Problem:
    """One mask, length and dim: kernels, and as many sets of tensors as are beyond L2."""

    def __init__(self, lib, context, text, seq, dim, dtype, batch, heads, ops, tile=None):
        self.text, self.seq, self.dim, self.matrices = text, seq, dim, batch * heads
        if text.startswith("random "):
            dense = torch.rand(seq, seq) * 100 < int(text.split()[1])
            self.mask = lib.from_bytes(dense.to(torch.uint8))
        else:
            self.mask = lib.expression(text, seq)
            dense = torch.stack([torch.frombuffer(bytearray(r), dtype=torch.uint8) for r in self.mask.rows(range(seq))]).bool()
        self.allowed = dense.cuda()
        self.pairs = int(dense.sum())
        self.kernels = {}
        options = dict(dtype=s.BF16 if dtype == torch.bfloat16 else s.FP16, head_dim=dim, batch=batch, heads=heads)
        if tile:
            options |= dict(zip(("tile_rows", "tile_cols"), map(int, tile.split("x"))))
        for name in ops:
            self.kernels[name] = context.compile(self.mask, op=OPS[name], **options)
        stride = (self.pairs + 7) // 8 * 8
        indptr = torch.zeros(seq + 1, dtype=torch.int64)
        indptr[1:] = dense.sum(1).cumsum(0)
        self.indptr, self.indices = indptr.int().cuda(), dense.nonzero()[:, 1].int().cuda()
        self.sets = []
        one = 2 * self.matrices * (stride + 4 * seq * dim)
        for _ in range(max(2, min(8, math.ceil(150e6 / one)))):
            shape = (batch, heads, seq, dim)
            q, k, x = (torch.randn(shape, device="cuda").to(dtype) for _ in range(3))
            values = torch.randn(batch, heads, stride, device="cuda").to(dtype)
            made = dict(q=q, k=k, x=x, y=torch.empty_like(x), values=values, results=torch.empty_like(values))
            a = lambda **t: lib.sparse_args(seq, seq, **t)
            made["args"] = {"sddmm": a(values=made["results"], q=q, k=k), "softmax": a(values=made["results"], scores=values),
                            "spmm": a(values=values, x=x, y=made["y"]), "spmm_t": a(values=values, x=x, y=made["y"])}
            self.sets.append(made)

    def dense(self, n, fill=0.0):
        """The matrices of set n with `fill` where nothing is allowed; made once."""
        key = f"dense {fill}"
        if key not in self.sets[n]:
            values = self.sets[n]["values"]
            matrix = torch.full((*values.shape[:2], self.seq, self.seq), fill, device="cuda", dtype=values.dtype)
            matrix[:, :, self.allowed] = values[:, :, :self.pairs]
            self.sets[n][key] = matrix
        return self.sets[n][key]

    def sparse(self, n, layout, transposed=False):
        key = f"{layout} {transposed}"
        if key not in self.sets[n]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                matrices = self.dense(n).flatten(0, 1)
                matrices = matrices.transpose(1, 2) if transposed else matrices
                self.sets[n][key] = [m.to_sparse_csr() if layout == "csr" else m.to_sparse_bsr((64, 64)) for m in matrices]
        return self.sets[n][key]

    def floor_ms(self, op):
        tensors = 0 if op == "softmax" else 2 * self.seq * self.dim
        values = 2 * self.pairs if op == "softmax" else self.pairs
        return 2e3 * self.matrices * (values + tensors) / COPY_BYTES


def peers(p, op, wanted=()):
    """name -> call(set); of the peers those whose last word is wanted, or all."""
    forbidden = ~p.allowed

    def splat(n):
        p.kernels[op].run(p.sets[n]["args"][op], torch.cuda.current_stream().cuda_stream)

    calls = {"splat": splat}
    if op == "sddmm":
        out = torch.empty(*p.sets[0]["q"].shape[:2], p.seq, p.seq, device="cuda", dtype=p.sets[0]["q"].dtype)

        def dense(n):
            torch.matmul(p.sets[n]["q"], p.sets[n]["k"].transpose(2, 3), out=out)
            out.masked_fill_(forbidden, 0.0)

        def sampled(n):
            for q, k, a in zip(p.sets[n]["q"].flatten(0, 1), p.sets[n]["k"].flatten(0, 1), p.sparse(n, "csr")):
                torch.sparse.sampled_addmm(a, q, k.T, beta=0.0, out=a)

        calls |= {"dense": dense, "csr": sampled}
    elif op == "softmax":
        calls["dense"] = lambda n: torch.softmax(p.dense(n, -math.inf), 3)
    else:
        turned = op == "spmm_t"

        def dense(n):
            a = p.dense(n)
            torch.matmul(a.transpose(2, 3) if turned else a, p.sets[n]["x"], out=p.sets[n]["y"])

        def product(layout):
            def call(n):
                for a, x in zip(p.sparse(n, layout, turned), p.sets[n]["x"].flatten(0, 1)):
                    a @ x
            return call

        masked_a = torch.empty(*p.sets[0]["x"].shape[:2], p.seq, p.seq, device="cuda", dtype=p.sets[0]["x"].dtype)

        def masked(n):
            torch.mul(p.dense(n), p.allowed, out=masked_a)
            torch.matmul(masked_a.transpose(2, 3) if turned else masked_a, p.sets[n]["x"], out=p.sets[n]["y"])

        calls |= {"dense": dense, MASKED: masked, "csr": product("csr"), "bsr": product("bsr")}
    return {name: call for name, call in calls.items() if name == "splat" or not wanted or name.split()[-1] in wanted}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib")
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "time-ops.json"))
    parser.add_argument("--seq", default="1024,2048,4096")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--ops", default=",".join(OPS))
    parser.add_argument("--masks", help="separated by ';'")
    parser.add_argument("--peers", default="", help="dense, masked, csr, bsr, separated by ','; default all")
    parser.add_argument("--tile", help="force a tile shape, such as 128x64")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16"))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit")
    args = parser.parse_args()
    lib = s.Splat(args.lib)
    context = lib.context()
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float16
    rows, ratios = [], {}
    print(f"{'op':8} {'S':>5} {'D':>4} {'mask':38} {'density':>7} {'splat us':>9} {'x floor':>7}  peers, us")
    for seq in map(int, args.seq.split(",")):
        for dim in map(int, args.dims.split(",")):
            for text in args.masks.split(";") if args.masks else MASKS:
                p = Problem(lib, context, text.strip(), seq, dim, dtype, args.batch, args.heads, args.ops.split(","), args.tile)
                for op in args.ops.split(","):
                    timed = [timing.Timed(name, call, len(p.sets)) for name, call in peers(p, op, args.peers.split(",") if args.peers else ()).items()]
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        found = timing.alternate(timed, args.rounds)
                    plan = p.kernels[op].plan_info()
                    row = {"op": op, "seq": seq, "dim": dim, "mask": text, "density": p.pairs / seq**2, "floor_ms": p.floor_ms(op),
                           "tile": [plan["tile_rows"], plan["tile_cols"]], "waste": plan["waste"], "results": found}
                    rows.append(row)
                    ms = {n: r["ms"] for n, r in found.items() if "ms" in r}
                    for name, without in ((op, MASKED), (f"{op} over peers that mask", "dense")):
                        others = [v for n, v in ms.items() if n not in ("splat", without)]
                        if "splat" in ms and others and (MASKED in ms or without == MASKED):
                            ratios.setdefault(name, []).append(min(others) / ms["splat"])
                    print(f"{op:8} {seq:5} {dim:4} {text[:38]:38} {row['density']:7.3f} {1e3 * ms.get('splat', math.nan):9.1f} "
                          f"{ms.get('splat', math.nan) / row['floor_ms']:7.2f}  "
                          + ", ".join(f"{n} {1e3 * v:.1f}" for n, v in ms.items() if n != "splat"), flush=True)
                del p
                torch.cuda.empty_cache()
    means = {op: math.exp(sum(map(math.log, r)) / len(r)) for op, r in ratios.items()}
    print("geometric mean of best peer / splat (dense peers of spmm are given the zeros where not said otherwise): "
          + ", ".join(f"{op} {v:.2f}" for op, v in means.items()))
    record.write(args.out, {"kind": "ops", "meta": record.metadata(lib, args.commit), "batch": args.batch, "heads": args.heads,
                            "dtype": args.dtype, "means": means, "rows": rows})


if __name__ == "__main__":
    main()
