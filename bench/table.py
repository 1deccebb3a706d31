"""Turns the JSON of time_gpu.py, check_gpu.py, tile_rates.py, plan_time and compare into markdown.

    python3 bench/table.py bench/results/*.json > bench/results/README.md
"""
import argparse
import json
import sys


def table(header, rows):
    """A markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1)] + rows
    return "\n".join("| " + " | ".join(str(c) for c in row) + " |" for row in lines)


def number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"


def head(title, data):
    meta = data["meta"]
    parts = [meta.get("date"), meta.get("gpu"), f"driver {meta['driver']}" if meta.get("driver") else None,
             f"PyTorch {meta['torch']}" if meta.get("torch") else None,
             f"cuDNN {meta['cudnn']}" if meta.get("cudnn") else None, f"JAX {meta['jax']}" if meta.get("jax") else None,
             meta.get("cpu"), f"commit {str(meta.get('commit') or 'unknown')[:40]}"]
    return f"## {title}\n\n{', '.join(p for p in parts if p)}\n"


def milliseconds(case, name):
    return case["times"].get(name, {}).get("ms")


def time_row(case):
    peers = [f"{n} {t['ms']:.3f}" for n, t in case["times"].items() if n not in ("splat", "flex") and "ms" in t]
    splat, flex = milliseconds(case, "splat"), milliseconds(case, "flex")
    plan = case.get("plan", {})
    tile = f"{plan['tile_rows']}x{plan['tile_cols']}" if plan else "-"
    return [case["pattern"], number(case["density"], 4), number(case["floor_ms"]), number(splat),
            number(case.get("ratio_to_floor"), 2), number(flex), number(flex / splat if flex and splat else None, 2),
            ", ".join(peers) or "-", tile, number(plan.get("waste"), 2), plan.get("passes", "-"),
            number(case.get("useful_tflops"), 0), number(case.get("tile_tflops"), 0),
            number(plan["predicted_us"] / 1e3 if plan else None), "wrong" if case.get("problems") else
            ("failed" if "splat" in case["errors"] else "ok")]


def time_table(data):
    setup, top = data["setup"], data["ceilings"]
    parts = [head(f"Times: B {setup['batch']}, H {setup['heads']}, S {setup['seq']}, {setup['dtype']}", data),
             f"Measured in this run: bf16 matrix product {top['matmul_flops'] / 1e12:.0f} TFLOP/s, device copy "
             f"{top['copy_bytes'] / 1e12:.2f} TB/s. Milliseconds, medians of {setup['rounds']} rounds.\n"]
    header = ["pattern", "density", "floor", "splat", "x floor", "flex", "flex/splat", "other peers", "tile", "waste",
              "passes", "useful TFLOP/s", "tile TFLOP/s", "predicted", "result"]
    for dim in sorted({r["dim"] for r in data["results"]}, reverse=True):
        cases = [r for r in data["results"] if r["dim"] == dim]
        parts.append(f"### D {dim}\n\n" + table(header, [time_row(c) for c in cases]) + "\n")
        line = data.get("summary", {}).get(f"d{dim}")
        if line:
            parts.append(f"Geometric mean over {line['patterns']} patterns: splat "
                         f"{number(line['splat_over_floor'], 2)} x floor (worst {number(line['worst'], 2)}), "
                         f"flex {number(line['flex_over_floor'], 2)} x floor.\n")
        notes = [f"- {c['pattern']}: {n}: {e}" for c in cases for n, e in c["errors"].items()]
        notes += [f"- {c['pattern']}: {p}" for c in cases for p in c.get("problems", [])]
        notes += [f"- {c['pattern']}: {n} and splat differ by {e:.3g}" for c in cases for n, e in c["agree"].items()
                  if not e < 2e-2]
        parts += ["\n".join(notes) + "\n"] if notes else []
    if data.get("not_begun"):
        parts.append(f"Out of time before: {', '.join(data['not_begun'])}.\n")
    if data.get("host"):
        parts.append("### Host side\n\n" + table(["what", "value"], [
            [k, number(v, 3) if isinstance(v, float) else v] for k, v in data["host"].items()]) + "\n")
    return "\n".join(parts)


def check_table(data):
    rows = [[g["group"], g["passed"], len(g["failures"]), len(g["skipped"]), number(g["seconds"], 1)]
            for g in data["groups"]]
    failures = [f"- {g['group']}: {f[:300]}" for g in data["groups"] for f in g["failures"][:3]]
    return "\n".join([head("Correctness", data), f"{data['passed']} passed, {data['failed']} failed (device "
                      f"{data['device']}, seed {data['seed']}).\n",
                      table(["group", "passed", "failed", "skipped", "s"], rows), ""] + failures + [""])


def tiles_table(data):
    keys = ("full_ns", "partial_ns", "bits_ns", "row_ns", "window_narrow", "window_wide", "periodic", "table", "bits")
    rows = [[f"{r['rows']}x{r['cols']} D {r['dim']}", r["warps"], r["blocks_per_sm"]] +
            [number(r.get(k), 0) for k in keys] + [number(r["full_tflops"], 0), r["registers"]]
            for r in data["results"]]
    header = ["shape", "warps", "blocks/SM"] + [k.replace("_", " ") for k in keys] + ["TFLOP/s full", "registers"]
    return "\n".join([head("Tile costs (ns a tile on one block slot)", data),
                      f"Launch {data['launch_us']:.2f} us.\n", table(header, rows), ""])


def plan_table(data):
    rows = []
    for r in data["results"]:
        memcpy = r.get("memcpy_ms")
        rows.append([r["name"], r["error"] if "error" in r else number(r["ms"], 4), number(r["min_ms"], 4),
                     number(memcpy, 2), number(r["ms"] / memcpy if memcpy else None, 2), number(r.get("plan_ms"), 2),
                     number(r["peak_mb"], 1), r["families"], r["mark"]])
    header = ["what", "ms", "least ms", "memcpy ms", "x memcpy", "plan ms", "peak MB", "families", "mark"]
    return "\n".join([head("Planning and compiling", data),
                      "The mark is in milliseconds, or times memcpy where there is one.\n", table(header, rows), ""])


def compare_table(data):
    from compare import report  # which takes table() from here
    return report.markdown(data)


WRITERS = {"time": time_table, "check": check_table, "tiles": tiles_table, "plan": plan_table, "compare": compare_table}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", help="JSON files")
    for path in parser.parse_args().files:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        if data.get("kind") not in WRITERS:
            sys.exit(f"{path}: kind is {data.get('kind')!r}; known are {', '.join(WRITERS)}")
        print(WRITERS[data["kind"]](data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
