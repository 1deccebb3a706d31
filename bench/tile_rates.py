"""Measures what the cost table of a chip holds: nanoseconds of one tile on one block slot, with all slots busy.

    python3 bench/tile_rates.py --dims 64 128 256 --out bench/results/tiles.json

For each tile shape M x N and head dim D (shapes without a tune row are skipped) it launches exactly `waves` row tiles a
block slot, so that t = launch + waves * (row + full tiles * full + partial tiles * (full + partial)):
    full, row   slope and intercept of `full` over key lengths of 1 to 16 tiles
    partial     the rest of t for narrow windows, whose tiles are nearly all PARTIAL with affine bounds
    periodic, table, bits   likewise for strided(4), for a random interval a row, for random bytes
How many tiles of each predicate a plan has comes from the plan itself. Prints rows as a tune table wants them.
"""
import argparse
import re
import sys

import torch

import record
import splat_ctypes
import timing

WAVES = 8
FULL_TILES = (1, 2, 4, 8, 16)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib")
    parser.add_argument("--out", default="tiles.json")
    parser.add_argument("--commit")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--shapes", nargs="+", default=[f"{m}x{n}" for m in (64, 128) for n in (32, 64, 128)])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arch", type=int, default=0)
    return parser.parse_args()


class Rates:
    def __init__(self, args):
        self.args, self.lib = args, splat_ctypes.Splat(args.lib)
        torch.zeros(1, device="cuda")
        self.sm_count = torch.cuda.get_device_properties(0).multi_processor_count
        self.context = self.lib.context()
        self.launch_ns = 0.0

    def options(self, dim, shape):
        return dict(dtype=splat_ctypes.BF16, head_dim=dim, heads=WAVES, tile_rows=shape[0], tile_cols=shape[1],
                    arch=self.args.arch, device=splat_ctypes.DEVICE_GPU)

    def spec(self, dim, shape):
        """warps, blocks_per_sm and the other numbers of the spec; raises SplatError when the shape has no row."""
        text = self.lib.dump(self.lib.expression("full", 4096), "spec", **self.options(dim, shape))
        return {name: int(value) for name, value in re.findall(r"^(\w+)\s+(\d+)$", text, re.M)}

    def measure(self, mask, dim, shape, q_len, kv_len):
        """(ns of one launch, {predicate: tiles of one head}, compile information) with WAVES heads."""
        kernel = self.context.compile(mask, **self.options(dim, shape))
        info = kernel.plan_info()
        if (info["tile_rows"], info["tile_cols"]) != shape:
            raise RuntimeError(f"asked for {shape}, planned {info['tile_rows']} x {info['tile_cols']}")
        size = kernel.workspace_bytes(1, WAVES)
        workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
        calls, keep = [], []
        for _ in range(2):
            q, o = (torch.randn(1, WAVES, q_len, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            k, v = (torch.randn(1, WAVES, kv_len, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            lse = torch.empty(1, WAVES, q_len, device="cuda")
            keep.append((q, k, v, o, lse))
            calls.append(self.lib.args(q, k, v, o, lse, workspace=workspace))
        timed = timing.Timed("splat", lambda n: kernel.run(calls[n], torch.cuda.current_stream().cuda_stream), 2)
        result = timing.alternate([timed], self.args.rounds, target_ms=6.0)["splat"]
        if "error" in result:
            raise RuntimeError(result["error"])
        return result["ms"] * 1e6, kernel.tiles_by_predicate(), kernel.info()

    def measure_launch(self):
        """One block's worth of work, launched back to back: what a launch costs at least."""
        mask = self.lib.expression("window(0)", 16)
        kernel = self.context.compile(mask, dtype=splat_ctypes.BF16, head_dim=64, arch=self.args.arch,
                                      device=splat_ctypes.DEVICE_GPU)
        q, k, v, o = (torch.randn(1, 1, 16, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        call = self.lib.args(q, k, v, o)
        timed = timing.Timed("launch", lambda n: kernel.run(call, torch.cuda.current_stream().cuda_stream), 1)
        self.launch_ns = timing.alternate([timed], 5)["launch"]["ms"] * 1e6

    def row(self, dim, shape):
        spec = self.spec(dim, shape)
        slots = self.sm_count * spec["blocks_per_sm"]
        m, n = shape
        q_len = m * slots
        out = {"dim": dim, "rows": m, "cols": n, "warps": spec.get("warps"), "blocks_per_sm": spec["blocks_per_sm"]}
        points = []
        for tiles in FULL_TILES:
            ns, counts, info = self.measure(self.lib.expression("full", q_len, n * tiles), dim, shape, q_len, n * tiles)
            if set(counts) != {"none"}:
                raise RuntimeError(f"full was planned with {counts}")
            points.append((tiles, (ns - self.launch_ns) / WAVES))
        out["full_ns"], out["row_ns"] = line(points)
        out["points"], out["registers"], out["spill_bytes"] = points, info["registers"], info["spill_bytes"]
        top = 4.0 * m * n * dim * slots / (out["full_ns"] * 1e-9) / 1e12
        out["full_tflops"] = top
        for name, mask, kv_len in self.partial_masks(q_len, shape):
            ns, counts, _ = self.measure(mask, dim, shape, q_len, kv_len)
            out[name] = self.extra(out, ns, counts, slots)
            out[f"{name}_tiles"] = counts
        return out

    def partial_masks(self, q_len, shape):
        """(name, mask, key length), made one at a time: the byte masks are large."""
        m, n = shape
        generator = torch.Generator().manual_seed(1)
        yield "window_narrow", self.lib.expression(f"window({m // 4})", q_len), q_len
        yield "window_wide", self.lib.expression(f"window({m // 2})", q_len), q_len
        yield "periodic", self.lib.expression("strided(4)", q_len, 16 * n), 16 * n
        kv_len = 16 * n
        low = torch.randint(0, kv_len // 2, (q_len, 1), generator=generator, dtype=torch.int32)
        high = torch.randint(kv_len // 2, kv_len, (q_len, 1), generator=generator, dtype=torch.int32)
        j = torch.arange(kv_len, dtype=torch.int32)[None, :]
        yield "table", self.lib.from_bytes(((j >= low) & (j < high)).to(torch.uint8)), kv_len
        yield "bits", self.lib.from_bytes(torch.randint(0, 2, (q_len, kv_len), generator=generator,
                                                        dtype=torch.uint8)), kv_len

    def extra(self, out, ns, counts, slots):
        """Nanoseconds that a PARTIAL tile costs beyond a FULL one."""
        tiles, partial = sum(counts.values()) / slots, sum(c for p, c in counts.items() if p != "none") / slots
        if not partial:
            return None
        return ((ns - self.launch_ns) / WAVES - out["row_ns"] - tiles * out["full_ns"]) / partial


def line(points):
    """Least squares with relative weights: slope and intercept."""
    w = [1.0 / y**2 for _, y in points]
    sw, sx = sum(w), sum(a * x for a, (x, _) in zip(w, points))
    sy, sxx = sum(a * y for a, (_, y) in zip(w, points)), sum(a * x * x for a, (x, _) in zip(w, points))
    sxy = sum(a * x * y for a, (x, y) in zip(w, points))
    slope = (sw * sxy - sx * sy) / (sw * sxx - sx * sx)
    return slope, (sy - slope * sx) / sw


def show(out):
    def number(key):
        return "-" if out.get(key) is None else f"{out[key]:.0f}"
    windows = [out[k] for k in ("window_narrow", "window_wide") if out.get(k) is not None]
    others = [out[k] for k in ("table", "bits") if out.get(k) is not None]
    out["partial_ns"] = max(sum(windows) / len(windows), 0.0) if windows else None
    out["bits_ns"] = max(max(others), 0.0) if others else None
    print(f"    {{{out['dim']:3}, {out['rows']:3}, {out['cols']:3}, {out['warps']}, {out['blocks_per_sm']}, "
          f"{number('full_ns'):>5}, {number('partial_ns'):>5}, {number('bits_ns'):>5}, {number('row_ns'):>6}}}, "
          f"/* {out['full_tflops']:.0f} TFLOP/s full; windows {number('window_narrow')} {number('window_wide')}, "
          f"periodic {number('periodic')}, table {number('table')}, bits {number('bits')}; "
          f"{out['registers']} registers, {out['spill_bytes']} B spilled */", flush=True)


def main():
    args = arguments()
    rates = Rates(args)
    data = {"kind": "tiles", "meta": record.metadata(rates.lib, args.commit), "waves": WAVES, "results": [],
            "refused": []}
    data["ceilings"] = timing.ceilings(3)
    rates.measure_launch()
    data["launch_us"] = rates.launch_ns / 1e3
    print(f"/* {rates.sm_count} multiprocessors, copy {data['ceilings']['copy_bytes'] / 1e6:.0f} bytes/us, launch "
          f"{data['launch_us']:.2f} us, matmul {data['ceilings']['matmul_flops'] / 1e12:.0f} TFLOP/s */")
    print("    /* max_dim, rows, cols, warps, blocks_per_sm, full_ns, partial_ns, bits_ns, row_ns */")
    for dim in args.dims:
        for text in args.shapes:
            shape = tuple(int(n) for n in text.split("x"))
            try:
                data["results"].append(rates.row(dim, shape))
                show(data["results"][-1])
            except (splat_ctypes.SplatError, RuntimeError, KeyError) as error:
                data["refused"].append({"dim": dim, "shape": text, "why": f"{type(error).__name__}: {error}"})
                print(f"    /* {text} D {dim}: {str(error)[:150]} */", flush=True)
            torch.cuda.empty_cache()
            record.write(args.out, data)
    return 0 if data["results"] else 1


if __name__ == "__main__":
    sys.exit(main())
