"""Checks splat's results on the GPU (or, with --device cpu, the CPU engine) against float64 attention.

Each group runs in a process of its own, so that a fault or a hang costs one group; --jobs of them run at once. Prints a
line a group and `N passed, M failed` last; writes every failure to --out. Exit status 1 when anything failed.

    python3 bench/check_gpu.py --out bench/results/check.json
    python3 bench/check_gpu.py --groups offsets,graph_replay --jobs 1
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import check_cases
import check_device
import check_env
import record
import splat_ctypes

GROUPS = {name: (function, gpu_only) for name, function, gpu_only in check_cases.GROUPS + check_device.GROUPS}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lib", help="libsplat.so (default $SPLAT_LIB, else build/libsplat.so)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--groups", help="comma-separated; names or their beginnings. Default: all")
    parser.add_argument("--list", action="store_true", help="list the groups")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, for the CPU engine")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--group-timeout", type=int, default=240, help="seconds after which a group counts as hung")
    parser.add_argument("--seed", type=int, default=0, help="0 = a new one each time")
    parser.add_argument("--cache-dir", help="kernel cache (default: the library's own)")
    parser.add_argument("--commit")
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(args):
    names = [n for n in GROUPS if args.device != "cpu" or not GROUPS[n][1]]
    if not args.groups:
        return names
    wanted = args.groups.split(",")
    missing = [w for w in wanted if not any(n.startswith(w) for n in GROUPS)]
    if missing:
        sys.exit(f"no group starts with {missing[0]}; see --list")
    return [n for n in names if any(n.startswith(w) for w in wanted)]


def child(args):
    """Runs one group and writes what came of it; a result file that is missing tells the parent of a crash."""
    began = time.monotonic()
    env = check_env.Env(args.lib, args.device, args.quick, args.seed, args.cache_dir)
    lost = None
    try:
        GROUPS[args.child][0](env)
    except check_env.DeviceLost as error:
        lost = str(error)
    except Exception as error:
        env.failures.append(f"the group stopped: {type(error).__name__}: {error}")
    result = {"group": args.child, "passed": env.passed, "failures": env.failures, "skipped": env.skipped,
              "device_lost": lost, "seconds": time.monotonic() - began, "seed": args.seed}
    record.write(args.result, result)
    sys.stdout.flush()
    os._exit(0)  # a broken context may hang at exit


def start(args, name, folder):
    result = os.path.join(folder, name + ".json")
    command = [sys.executable, os.path.abspath(__file__), "--child", name, "--result", result, "--device", args.device,
               "--seed", str(args.seed)]
    command += ["--quick"] if args.quick else []
    command += ["--lib", args.lib] if args.lib else []
    command += ["--cache-dir", args.cache_dir] if args.cache_dir else []
    log = open(os.path.join(folder, name + ".log"), "w+", encoding="utf-8")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    return {"name": name, "process": process, "log": log, "result": result, "began": time.monotonic()}


def finish(job, reason=None):
    """The group's result; a made-up one with a failure when the process died."""
    code = job["process"].wait()
    job["log"].seek(0)
    tail = job["log"].read()[-1500:]
    job["log"].close()
    if reason is None and os.path.exists(job["result"]):
        with open(job["result"], encoding="utf-8") as file:
            return json.load(file)
    reason = reason or f"the process ended with status {code}"
    return {"group": job["name"], "passed": 0, "failures": [f"{reason}: {tail.strip()}"], "skipped": [],
            "device_lost": None, "seconds": time.monotonic() - job["began"]}


def report(result):
    skipped = f", {len(result['skipped'])} skipped" if result["skipped"] else ""
    print(f"{result['group']:24} {result['passed']:4} passed, {len(result['failures']):3} failed{skipped}"
          f"  ({result['seconds']:.1f} s)", flush=True)
    for failure in result["failures"][:4]:
        print(f"    {failure[:400]}", flush=True)
    if len(result["failures"]) > 4:
        print(f"    ... and {len(result['failures']) - 4} more", flush=True)


def run_all(args, names):
    waiting, running, results = list(names), [], []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < args.jobs:
                running.append(start(args, waiting.pop(0), folder))
            for job in list(running):
                reason = None
                if job["process"].poll() is None:
                    if time.monotonic() - job["began"] < args.group_timeout:
                        continue
                    job["process"].kill()
                    reason = f"no end after {args.group_timeout} s"
                running.remove(job)
                results.append(finish(job, reason))
                report(results[-1])
            time.sleep(0.05)
    return sorted(results, key=lambda r: names.index(r["group"]))


def main():
    args = arguments()
    if args.list:
        print("\n".join(name + ("  (GPU only)" if gpu_only else "") for name, (_, gpu_only) in GROUPS.items()))
        return 0
    args.seed = args.seed or int.from_bytes(os.urandom(3), "little") + 1
    if args.child:
        child(args)
    lib = splat_ctypes.Splat(args.lib)
    print(f"seed {args.seed}", flush=True)
    results = run_all(args, chosen(args))
    passed, failed = sum(r["passed"] for r in results), sum(len(r["failures"]) for r in results)
    if args.out:
        record.write(args.out, {"kind": "check", "meta": record.metadata(lib, args.commit), "device": args.device,
                                "seed": args.seed, "passed": passed, "failed": failed, "groups": results})
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
