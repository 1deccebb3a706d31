#!/usr/bin/env python3
"""Runs every kind of test and sums up: the last line is "N passed, M failed", with ", K skipped" when there are any.

Kinds, in this order; name some on the command line to run only those:
    unit      tests/unit/test_*.c, cmocka programs that report in TAP
    machine   tests/machine/run_*.cc: generated kernels, and mutants of them, executed on the CPU (docs/testing.md)
    faults    tests/faults/test_*.c: memory, system calls, driver and compiler fail at every call (docs/testing.md)
    pytest    every other folder of tests/ (cli, property, golden, fuzz, ...)
    examples  examples/*.c: each must exit with 0 and print something
    symbols   the shared library exports names of the public header and nothing else
    install   make install, then an example built with pkg-config against the shared and the static library
Not run unless named, for they take long:
    races     the programs that `make races` built with ThreadSanitizer
    valgrind  the tests of the tool, with splatc under valgrind

Takes BUILD, the folder that make built into, and SAN, the sanitizers it was built with. SPLAT_DEEP asks for longer
runs. Keeps logs in $BUILD/test-logs.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else ROOT / BUILD
SANITIZERS = [name for name in os.environ.get("SAN", "").split(",") if name]
LOGS = BUILD / "test-logs"
DEEP = bool(os.environ.get("SPLAT_DEEP"))
PROGRAM_SECONDS = 3600 if DEEP else 900
PYTEST_SECONDS = 10800 if DEEP else 3000
JOBS = max(1, min(4, os.cpu_count() or 1))


class Tally:
    """Counts results, and prints one line for each group and for each failure."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def group(self, name, passed, failures, skipped=0, seconds=0.0):
        self.passed += passed
        self.failed += len(failures)
        self.skipped += skipped
        counts = f"{passed} passed, {len(failures)} failed" + (f", {skipped} skipped" if skipped else "")
        print(f"{name}: {counts} ({seconds:.1f} s)", flush=True)
        for title, detail in failures:
            print(f"  FAILED {name}: {title}", flush=True)
            lines = detail.strip().splitlines()
            if len(lines) > 40:
                lines = lines[:20] + ["..."] + lines[-20:]
            for line in lines:
                print(f"    {line}", flush=True)

    def last_line(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")


def race_settings():
    """The sanitizer does not see the barriers of GCC's OpenMP and reports races that are none: build with CC=clang,
    whose OpenMP tells it of them through the archer library."""
    archer = sorted(pathlib.Path("/usr/lib").glob("llvm-*/lib/libarcher.so"))
    settings = {"TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1"}
    return dict(settings, OMP_TOOL_LIBRARIES=str(archer[-1])) if archer else settings


def environment():
    """The tests' own cache folder, so that no user's cache is used or filled; sanitizers stop at the first report."""
    env = dict(os.environ)
    env.pop("SPLAT_CACHE", None)
    # Variables of the make that called us are kept, its job server is not ours to use.
    env["MAKEFLAGS"] = re.sub(r"(--jobserver-\S+|(?<!\S)-j\S*)", "", env.get("MAKEFLAGS", ""))
    env.update(SPLATC=str(BUILD / "splatc"), SPLAT_LIB=str(BUILD / "libsplat.so"), SPLAT_SOURCE=str(ROOT))
    if "thread" in SANITIZERS:
        env = dict(race_settings(), **env)
    if "address" in SANITIZERS:
        env.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0")
    return env


def call(command, log, extra=None, timeout=PROGRAM_SECONDS, cwd=ROOT):
    """Runs a command, its output to log and back. The return code is None after a timeout."""
    env = environment()
    with tempfile.TemporaryDirectory(prefix="splat-test-") as folder:
        os.chmod(folder, 0o700)
        env["SPLAT_CACHE_DIR"] = os.path.join(folder, "cache")
        env.update(extra or {})
        try:
            done = subprocess.run(
                [str(word) for word in command],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
            )
            code, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as expired:
            code, output = None, (expired.stdout or b"") + f"\nstopped after {timeout} s\n".encode()
    (LOGS / log).write_bytes(output)
    return code, output.decode(errors="replace")


def ending(code):
    if code is None:
        return f"took longer than {PROGRAM_SECONDS} s"
    return f"died by signal {-code}" if code < 0 else f"exit code {code}"


# ---- unit ----


def parse_tap(output):
    """Passed, skipped and failures of all TAP groups in a program's output, and how many results were promised."""
    passed = skipped = promised = 0
    failures, notes = [], []
    for line in output.splitlines():
        plan = re.match(r"1\.\.(\d+)", line)
        result = re.match(r"(not )?ok \d+ - (.*)", line)
        if plan:
            promised += int(plan[1])
        elif not result:
            notes.append(line)
            continue
        elif result[1]:
            failures.append((result[2], ""))
        elif "# SKIP" in line:
            skipped += 1
        else:
            passed += 1
    if failures:  # cmocka puts the words of a failure after or before its line, on either stream: show them all
        failures[0] = (failures[0][0], "\n".join(notes))
    return passed, skipped, failures, promised


def run_unit(program, extra=None, arguments=()):
    begin = time.monotonic()
    title = " ".join([program.name, *arguments])
    log = title.replace(" ", "-") + ".log"
    code, output = call([program, *arguments], log, {"CMOCKA_MESSAGE_OUTPUT": "TAP", **(extra or {})})
    passed, skipped, failures, promised = parse_tap(output)
    reported = passed + skipped + len(failures)
    if promised == 0 or reported != promised or (code != 0 and not failures):
        failures.append((f"{ending(code)} after {reported} of {promised} results", output))
    return title, passed, failures, skipped, time.monotonic() - begin


def unit_jobs():
    programs = [BUILD / "tests" / "unit" / source.stem for source in sorted((ROOT / "tests" / "unit").glob("test_*.c"))]
    return [(run_unit, program) for program in programs]


def fault_jobs():
    # Sanitizers replace malloc and system calls themselves, as these do: make built none of them then.
    shims = {"test_long_life", "test_memory", "test_store", "test_tool"} if SANITIZERS else set()
    names = [source.stem for source in sorted((ROOT / "tests" / "faults").glob("test_*.c")) if source.stem not in shims]
    return [(run_unit, BUILD / "tests" / "faults" / name) for name in names]


def run_race(program):
    name, *rest = run_unit(program, race_settings())
    return f"races {name}", *rest


def race_jobs():
    folder = BUILD / "races" / "tests"
    programs = sorted(path for path in folder.glob("*/test_*") if os.access(path, os.X_OK) and not path.suffix)
    return [(run_race, program) for program in programs] or [(lambda _: ("races", 0, [], 1, 0.0), None)]


# Seeds beyond those that the cases are always run with, and longer sequences.
DEEP_CASES = [["--from", "3", "--seeds", "12"], ["--from", "100", "--seeds", "3", "--longer", "336"]]


def machine_jobs():
    programs = [] if SANITIZERS else sorted((ROOT / "tests" / "machine").glob("run_*.cc"))
    jobs = [(run_unit, BUILD / "tests" / "machine" / source.stem) for source in programs]
    if jobs and DEEP:
        cases = BUILD / "tests" / "machine" / "run_cases"
        jobs += [(lambda more: run_unit(cases, arguments=more), more) for more in DEEP_CASES]
    return jobs


# ---- pytest ----


def run_pytest(folder, title=None, extra=None):
    begin = time.monotonic()
    title = title or f"tests/{folder.name}"
    log = title.replace("/", "-").removeprefix("tests-")
    report = LOGS / f"{log}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", folder]
    code, output = call(command, f"{log}.log", {"PYTHONDONTWRITEBYTECODE": "1", **(extra or {})}, timeout=PYTEST_SECONDS)
    passed = skipped = 0
    failures = []
    if report.exists():
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            trouble = [child for child in case if child.tag in ("failure", "error")]
            if trouble:
                failures.append((case.get("name"), f"{trouble[0].get('message')}\n{trouble[0].text or ''}"))
            elif case.find("skipped") is not None:
                skipped += 1
            else:
                passed += 1
    if code != 0 and not failures:
        failures.append((ending(code), output))
    return title, passed, failures, skipped, time.monotonic() - begin


def run_valgrind(folder):
    if shutil.which("valgrind") is None:
        return "valgrind", 0, [], 1, 0.0
    extra = {"SPLATC": str(ROOT / "tests/faults/valgrind_splatc.sh"), "UNDER_VALGRIND": str(BUILD / "splatc")}
    return run_pytest(folder, "valgrind", extra)


def valgrind_jobs():
    return [(run_valgrind, ROOT / "tests" / "cli")]


def pytest_jobs():
    folders = sorted({path.parent for path in (ROOT / "tests").glob("*/test_*.py")})
    if SANITIZERS:
        # A sanitized library cannot be loaded into a Python that is not; the tool can be run.
        folders = [folder for folder in folders if folder.name == "cli"]
    return [(run_pytest, folder) for folder in folders]


def run_jobs(tally, jobs):
    """Test programs do not know of each other: they run side by side and are reported in order."""
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for result in pool.map(lambda job: job[0](job[1]), jobs):
            tally.group(*result)


# ---- examples, symbols, install ----


def examples(tally):
    begin, passed, failures = time.monotonic(), 0, []
    for source in sorted((ROOT / "examples").glob("*.c")):
        code, output = call([BUILD / "examples" / source.stem], f"example-{source.stem}.log")
        if code == 0 and output.strip():
            passed += 1
        else:
            failures.append((source.stem, f"{output}\n{ending(code)}"))
    tally.group("examples", passed, failures, seconds=time.monotonic() - begin)


def symbols(tally):
    begin, failures = time.monotonic(), []
    code, output = call(["nm", "-D", "--defined-only", BUILD / "libsplat.so"], "symbols.log")
    exported = {line.split()[-1] for line in output.splitlines()} if code == 0 else set()
    declared = set(re.findall(r"\b(splat_\w+)\(", re.sub(r"/\*.*?\*/", "", (ROOT / "include/splat.h").read_text(), flags=re.S)))
    if exported - declared:
        failures.append(("exported but not in splat.h", " ".join(sorted(exported - declared))))
    if declared - exported:
        failures.append(("in splat.h but not exported", " ".join(sorted(declared - exported))))
    tally.group("symbols", 2 - len(failures), failures, seconds=time.monotonic() - begin)


def build_against(prefix, folder, kind):
    """Builds and runs an example as a user of the installed library would; "" or what went wrong."""
    flags = ["--static"] if kind == "static" else []
    env = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    code, words = call(["pkg-config", *flags, "--cflags", "--libs", "splat"], f"pkg-config-{kind}.log", env)
    if code != 0:
        return words
    link = words.split()
    if kind == "static":
        link = [str(prefix / "lib" / "libsplat.a") if word == "-lsplat" else word for word in link]
    program = folder / f"inspect-{kind}"
    compiler = os.environ.get("CC") or "gcc"
    code, output = call([compiler, "-std=c11", ROOT / "examples/inspect_plan.c", *link, "-o", program], f"build-{kind}.log")
    if code == 0:
        code, output = call([program], f"installed-{kind}.log", {"LD_LIBRARY_PATH": str(prefix / "lib")})
    return "" if code == 0 and output.strip() else f"{output}\n{ending(code)}"


def install(tally):
    begin, passed, failures = time.monotonic(), 0, []
    if SANITIZERS:
        tally.group("install", 0, [], 4)
        return
    make = (os.environ.get("MAKE") or "make").split()
    with tempfile.TemporaryDirectory(prefix="splat-install-") as name:
        folder = pathlib.Path(name)
        prefix, staged = folder / "prefix", folder / "stage"
        code, output = call([*make, "install", f"BUILD={BUILD}", f"PREFIX={prefix}"], "install.log")
        results = [("make install", "" if code == 0 else output)]
        code, output = call([*make, "install", f"BUILD={BUILD}", "PREFIX=/usr", f"DESTDIR={staged}"], "install-stage.log")
        header = staged / "usr/include/splat.h"
        results.append(("DESTDIR", "" if code == 0 and header.exists() else f"{output}\nno {header}"))
        for kind in ("shared", "static"):
            results.append((f"{kind} library through pkg-config", build_against(prefix, folder, kind)))
    for title, trouble in results:
        if trouble:
            failures.append((title, trouble))
        else:
            passed += 1
    tally.group("install", passed, failures, seconds=time.monotonic() - begin)


def main():
    side_by_side = {"unit": unit_jobs, "machine": machine_jobs, "faults": fault_jobs, "pytest": pytest_jobs}
    long = {"races": race_jobs, "valgrind": valgrind_jobs}
    alone = {"examples": examples, "symbols": symbols, "install": install}
    wanted = sys.argv[1:] or [*side_by_side, *alone]
    for name in wanted:
        if name not in side_by_side and name not in alone and name not in long:
            sys.exit(f"{name} is no kind of test; it must be one of {', '.join([*side_by_side, *alone, *long])}")
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    tally = Tally()
    kinds = {**side_by_side, **long}
    run_jobs(tally, [job for name in wanted if name in kinds for job in kinds[name]()])
    for name in wanted:
        if name in alone:
            alone[name](tally)
    print(tally.last_line())
    sys.exit(1 if tally.failed or not tally.passed else 0)


main()
