"""Checks the operators on values (SDDMM, softmax, SpMM, SpMM with A^T) on the GPU, or with --device cpu the CPU engine, against
float64 in torch.

Masks of many kinds, ragged lengths, grouped heads, a map of masks, several dims and types; outputs are poisoned, what is not to be
written must stay poison, NaN and inf stand where they must not show, every run is repeated and must give the same bits, and on
the GPU a replayed graph too. Prints a line for each failure and `N passed, M failed` last; exit status 1 when anything failed.

    python3 bench/check_ops.py
    python3 bench/check_ops.py --device cpu --quick
"""
import argparse
import math
import sys

import torch

import splat_ctypes as s

MASKS = [
    ("causal", 513, 513), ("window(100, 0)", 700, 700), ("window(30)", 1000, 1000), ("~causal", 257, 300),
    ("full", 129, 200), ("causal & (window(127, 0) | strided(64))", 1024, 1024), ("strided(16)", 512, 512),
    ("dilated(60, 4)", 600, 600), ("comb(16, 4)", 333, 640), ("grid(16, 5)", 400, 400), ("documents(100, 57, 300, 55)", 512, 512),
    ("window(64) | rows(0, 16) | cols(0, 16)", 777, 777), ("rows(10, 70) & window(20)", 150, 150), ("full - full", 70, 70),
    ("random_blocks(64, 3, 5)", 1024, 1024), ("causal", 1, 300), ("causal", 300, 40), ("random 20", 320, 333),
]
DTYPES = {"fp16": (s.FP16, torch.float16, 2.0**-11), "bf16": (s.BF16, torch.bfloat16, 2.0**-8)}
POISON = 0x5A5A


class Checker:
    def __init__(self, args):
        self.lib = s.Splat(args.lib)
        self.device = args.device
        self.context = self.lib.context()
        self.passed, self.failures = 0, []
        self.repeats = 1
        self.random = torch.Generator().manual_seed(args.seed)

    def randn(self, *shape):
        return torch.randn(*shape, generator=self.random)

    def mask(self, text, q_len, kv_len):
        if text.startswith("random "):
            dense = (torch.rand(q_len, kv_len, generator=self.random) * 100 < int(text.split()[1])).to(torch.uint8)
            return self.lib.from_bytes(dense)
        return self.lib.expression(text, q_len, kv_len)

    def note(self, what, fault):
        if fault is None:
            self.passed += 1
        else:
            self.failures.append(f"{what}: {fault}")
            print(self.failures[-1], flush=True)

    def poisoned(self, shape, dtype):
        return torch.full(shape, POISON, dtype=torch.int16).view(dtype).to(self.device)

    def launch(self, kernel, args, outputs):
        """Runs `repeats` times more, then from a graph on the GPU; the bits of all outputs must agree."""
        stream = torch.cuda.current_stream().cuda_stream if self.device == "cuda" else None
        fresh = [t.clone() for t in outputs]
        kernel.run(args, stream)
        if self.device == "cuda":
            torch.cuda.synchronize()
        first = [t.clone() for t in outputs]
        for turn in range(self.repeats + 1):
            for t, before in zip(outputs, fresh):
                t.copy_(before)
            graphed = turn == self.repeats and self.device == "cuda"
            if graphed:
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    kernel.run(args, torch.cuda.current_stream().cuda_stream)
                graph.replay()
            else:
                kernel.run(args, stream)
            if self.device == "cuda":
                torch.cuda.synchronize()
            for t, want in zip(outputs, first):
                if not torch.equal(t.view(torch.int16), want.view(torch.int16)):
                    return "a repeated run gives other bits" + (" (graph)" if graphed else f" (run {turn + 2})")
        return None


def differs(got, want, reach, rounding):
    """The first difference of two float64 tensors, or None. NaN and infinities must be the same."""
    special = ~torch.isfinite(want)
    wrong = torch.where(special, ~((got == want) | (got.isnan() & want.isnan())),
                        ~((got - want).abs() <= 1.02 * rounding * want.abs() + 4e-6 * reach + 1e-7))
    if not wrong.any():
        return None
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return f"{int(wrong.sum())} of {wrong.numel()} differ, first {at}: {float(got[at]):.7g}, expected {float(want[at]):.7g}"


def dense_of(mask, rows):
    return torch.stack([torch.frombuffer(bytearray(r), dtype=torch.uint8) for r in mask.rows(range(rows))]).bool()


def check_case(c, name, masks, q_len, kv_len, type_name, dim, batch, heads, kv_heads, options):
    number, dtype, rounding = DTYPES[type_name]
    group, dense = heads // kv_heads, [dense_of(m, q_len) for m in masks]
    whole = masks[0] if len(masks) == 1 else c.lib.map(masks, 1, heads)
    of_head = lambda h: dense[h if len(masks) > 1 else 0]
    pairs = [int(of_head(h).sum()) for h in range(heads)]
    stride = (max(pairs) + 7) // 8 * 8 + 8
    common = dict(dtype=number, head_dim=dim, batch=batch, heads=heads, kv_heads=kv_heads,
                  device=s.DEVICE_GPU if c.device == "cuda" else s.DEVICE_CPU, **options)
    f64 = lambda t: t.cpu().double()

    def gather(matrix):  # [batch, heads, q_len, kv_len] to values, padded with zeros
        out = torch.zeros(batch, heads, stride, dtype=matrix.dtype)
        for h in range(heads):
            out[:, h, :pairs[h]] = matrix[:, h][:, of_head(h)]
        return out

    def report(op, kernel, args, outputs, compare):
        what = f"{op} {type_name} D {dim} {name} {q_len} x {kv_len}"
        fault = c.launch(kernel, args, outputs)
        c.note(what, fault if fault else compare())

    def untouched(values):
        for h in range(heads):
            if not (values[:, h, pairs[h]:].cpu().view(torch.int16) == POISON).all():
                return "written beyond the pairs"
        return None

    # NaN in keys that some rows see and others do not
    q = c.randn(batch, q_len, heads, dim).to(dtype).to(c.device).transpose(1, 2)
    k = c.randn(batch, kv_heads, kv_len, dim).to(dtype)
    k[:, :, kv_len // 3] = math.nan
    k = k.to(c.device)
    values = c.poisoned((batch, heads, stride), dtype)
    kernel = c.context.compile(whole, op=s.SDDMM, **common)
    scale = dim**-0.5
    k_of_head = f64(k).repeat_interleave(group, 1)
    want = scale * f64(q) @ k_of_head.transpose(2, 3)
    reach = scale * f64(q).abs() @ k_of_head.abs().transpose(2, 3)

    def compare_sddmm():
        got, wanted, far = f64(values), gather(want), gather(reach)
        for h in range(heads):
            fault = differs(got[:, h, :pairs[h]], wanted[:, h, :pairs[h]], far[:, h, :pairs[h]].nan_to_num(0), rounding)
            if fault:
                return f"head {h}: {fault}"
        return untouched(values)

    args = c.lib.sparse_args(q_len, kv_len, values, q=q, k=k, kv_heads=kv_heads)
    report("sddmm", kernel, args, [values], compare_sddmm)

    # rows of scores, one of them -inf
    scores = (3 * c.randn(batch, heads, stride)).to(dtype)
    matrix = torch.full((batch, heads, q_len, kv_len), -math.inf, dtype=torch.float64)
    for h in range(heads):
        first = int(of_head(h)[: q_len // 2].sum())
        scores[0, h, first:first + int(of_head(h)[q_len // 2].sum())] = -math.inf
        matrix[:, h, of_head(h)] = scores[:, h, :pairs[h]].double()
    scores = scores.to(c.device)
    kernel = c.context.compile(whole, op=s.SOFTMAX, **common)
    top = matrix.amax(3, keepdim=True).clamp(min=-1e30)
    sums = (0.5 * (matrix - top)).exp().sum(3, keepdim=True)
    weights = (0.5 * (matrix - top)).exp() / sums.clamp(min=1e-300)
    want_lse = torch.where(sums > 0, 0.5 * top + sums.clamp(min=1e-300).log(), -math.inf).squeeze(3)
    lse = torch.full((batch, heads, q_len), 12345.0, device=c.device)
    values = c.poisoned((batch, heads, stride), dtype)

    def compare_softmax(results, guarded):
        def compare():
            got, wanted = f64(results), gather(weights)
            for h in range(heads):
                fault = differs(got[:, h, :pairs[h]], wanted[:, h, :pairs[h]], 40 * wanted[:, h, :pairs[h]], rounding)
                if fault:
                    return f"head {h}: {fault}"
            fault = differs(lse.cpu().double(), want_lse, torch.full_like(want_lse, 10.0).where(want_lse.isfinite(), torch.zeros(1, dtype=torch.float64)), 0)
            return f"lse: {fault}" if fault else untouched(results) if guarded else None
        return compare

    args = c.lib.sparse_args(q_len, kv_len, values, scores=scores, lse=lse, scale=0.5, kv_heads=kv_heads)
    report("softmax", kernel, args, [values, lse], compare_softmax(values, True))
    in_place = scores.clone()
    args = c.lib.sparse_args(q_len, kv_len, in_place, scores=in_place, lse=lse, scale=0.5, kv_heads=kv_heads)
    report("softmax in place", kernel, args, [in_place, lse], compare_softmax(in_place, False))

    # products, with rows of x that are not finite
    a = c.randn(batch, heads, stride).to(dtype)
    matrix = torch.zeros(batch, heads, q_len, kv_len, dtype=torch.float64)
    for h in range(heads):
        matrix[:, h, of_head(h)] = a[:, h, :pairs[h]].double()
    a = a.to(c.device)
    for transposed in (False, True):
        x_heads, x_rows, y_rows = (heads, q_len, kv_len) if transposed else (kv_heads, kv_len, q_len)
        x = c.randn(batch, x_rows, x_heads, dim).to(dtype)
        x[:, x_rows // 2, :, 1] = math.nan
        x[:, x_rows // 3, :, 2] = math.inf
        x = x.to(c.device).transpose(1, 2)
        y = c.poisoned((batch, heads, y_rows, dim), dtype)
        given = matrix.transpose(2, 3) if transposed else matrix
        allowed = torch.stack([of_head(h).T if transposed else of_head(h) for h in range(heads)])
        x_of_head = f64(x).repeat_interleave(heads // x_heads, 1)
        finite = x_of_head.nan_to_num(0, 0, 0)
        want = given @ finite
        reach = given.abs() @ finite.abs()
        for row, column in ((x_rows // 2, 1), (x_rows // 3, 2)):  # IEEE arithmetic, over allowed pairs alone
            term = given[:, :, :, row] * x_of_head[:, :, row, column, None]
            want[:, :, :, column] += torch.where(allowed[None, :, :, row], term, 0.0)
        if x_rows // 2 == x_rows // 3:
            continue
        kernel = c.context.compile(whole, op=s.SPMM_TRANSPOSED if transposed else s.SPMM, **common | {"kv_heads": x_heads})
        args = c.lib.sparse_args(q_len, kv_len, a, x=x, y=y, kv_heads=x_heads)
        report("spmm transposed" if transposed else "spmm", kernel, args, [y], lambda: differs(f64(y), want, reach, rounding))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", help="libsplat.so (default $SPLAT_LIB, else build/libsplat.so)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="each mask with one type and dim only")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    c = Checker(args)
    turn = 0
    for text, q_len, kv_len in MASKS:
        mask = c.mask(text, q_len, kv_len)
        for type_name in DTYPES:
            for dim in (64, 128, 40, 256):
                turn += 1
                if (args.quick and turn % 5) or (dim in (40, 256) and turn % 3):
                    continue
                check_case(c, text, [mask], q_len, kv_len, type_name, dim, 2, 4, 2, {})
    heads = ["causal", "~causal", "window(9)", "documents(100, 57, 300, 55)", "strided(3)", "random 20"]
    masks = [c.mask(text, 512, 512) for text in heads]
    for type_name in DTYPES:
        check_case(c, "six masks", masks, 512, 512, type_name, 64, 2, 6, 3, {})
        for rows, cols in ((128, 64), (64, 64), (64, 32)):
            check_case(c, f"six masks, {rows} x {cols}", masks, 512, 512, type_name, 128, 1, 6, 6,
                       {"tile_rows": rows, "tile_cols": cols})
        check_case(c, "residue", [c.mask("dilated(60, 4)", 601, 601)], 601, 601, type_name, 64, 1, 2, 1, {"layout": 3})
    c.repeats = 100
    for text, type_name, dim in (("causal", "bf16", 64), ("window(100) | strided(7)", "fp16", 128)):
        check_case(c, f"100 repeats of {text}", [c.mask(text, 700, 700)], 700, 700, type_name, dim, 1, 4, 2, {})
    print(f"{c.passed} passed, {len(c.failures)} failed")
    return 1 if c.failures or not c.passed else 0


if __name__ == "__main__":
    sys.exit(main())
