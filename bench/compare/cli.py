"""The command line of bench/compare: list, run, report, advise."""
import argparse
import glob
import os
import sys
import time

from compare import advise, problems, registry, runner, supervisor

BEGAN = time.monotonic()  # the budget of a worker includes its imports
RESULTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "results", "*.json")
AXES_HELP = {
    "pattern": "names of the suite, globs, or an expression of splat", "shape": "a,b,c,d", "n": "batch of a layer",
    "op": "forward, grad_input, grad_weight", "seq": "queries, and as many keys", "dim": "of a head",
    "dtype": ", ".join(problems.DTYPES) + " (fp32 is strict)", "layout": "bhsd, bshd; batch_first, batch_last"}


def add_axes(parser):
    group = parser.add_argument_group("settings", "any number of values each; names may be globs")
    for axis in problems.all_axes():
        group.add_argument(f"--{axis}", nargs="+", metavar="X", help=AXES_HELP.get(axis))


def add_implementations(parser):
    parser.add_argument("--impl", nargs="+", default=["*"], metavar="GLOB", help="implementations by name")
    parser.add_argument("--not", dest="unwanted", nargs="+", default=[], metavar="GLOB", help="but not these")
    parser.add_argument("--load", nargs="+", default=[], metavar="MODULE", help="Python modules that register more")


def parser():
    top = argparse.ArgumentParser(prog="bench/compare", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    show = commands.add_parser("list", help="kinds of problem, their axes, the implementations")
    show.add_argument("--load", nargs="+", default=[], metavar="MODULE")

    run = commands.add_parser("run", help="measure", description="Measures every chosen implementation at every chosen "
                              "setting; writes DIR/compare.json after each, and compare.md and plots at the end. A run into a "
                              "folder that holds a record measures what is missing in it.")
    run.add_argument("kinds", nargs="+", metavar="KIND", help=f"globs of {', '.join(problems.KINDS)}")
    add_axes(run)
    add_implementations(run)
    run.add_argument("--density", nargs=2, type=float, metavar=("LEAST", "MOST"), help="masks of this share of allowed pairs only")
    run.add_argument("--out", default="compare-out", metavar="DIR")
    run.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="after which nothing is begun")
    run.add_argument("--step-seconds", type=float, default=180.0, metavar="SECONDS",
                     help="after which one implementation, or the timing of one problem, is given up (180)")
    run.add_argument("--energy", action="store_true", help="measure energy too: windows of --energy-seconds each")
    run.add_argument("--energy-seconds", type=float, default=2.0, metavar="SECONDS")
    run.add_argument("--rounds", type=int, default=7)
    run.add_argument("--target-ms", type=float, default=12.0, help="length of one sample")
    run.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run for small settings")
    run.add_argument("--lib", help="libsplat.so")
    run.add_argument("--commit")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--plan", action="store_true", help="print the settings and implementations, measure nothing")
    run.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    run.add_argument("--same-run", action="store_true", help=argparse.SUPPRESS)

    report = commands.add_parser("report", help="table and plots of a record")
    report.add_argument("file", help="compare.json; table and plots go beside it")

    ask = commands.add_parser("advise", help="the best implementation for a setting, from records", description="Axes that are "
                              "not named are left open. Without a record of the setting itself the nearest ones are shown, "
                              "and said to be so.")
    ask.add_argument("kinds", nargs=1, metavar="KIND")
    add_axes(ask)
    ask.add_argument("--from", dest="files", nargs="+", metavar="FILE", help="records; default: those in bench/results")
    ask.add_argument("--impl", nargs="+", default=["*"], metavar="GLOB", help="only among these")
    ask.add_argument("--not", dest="unwanted", nargs="+", default=[], metavar="GLOB")
    ask.add_argument("--by", choices=("time", "energy"), default="time", help="what is least")
    ask.add_argument("--json", action="store_true")
    return top


def axes_of(args):
    return {axis: getattr(args, axis) for axis in problems.all_axes()}


def show_list():
    for name, kind in problems.KINDS.items():
        print(f"{name}: {kind.summary}")
        for axis, values in kind.axes.items():
            print(f"  --{axis} {' '.join(map(str, values))}")
        for i in registry.implementations(name):
            print(f"    {i.name:16} {i.summary}")
    return 0


def settings_of(args):
    names, wanted = problems.kinds(args.kinds), axes_of(args)
    problems.check_axes(names, wanted)
    unknown = registry.unmatched(names, [g for g in args.impl + args.unwanted])
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no such implementation of {', '.join(names)}; `list` shows them")
    return [s for name in names for s in problems.expand(name, wanted)]


def work(args, settings):
    """Measures in this process."""
    from compare import engine
    options = runner.Options(args.out, tuple(args.impl), tuple(args.unwanted), args.density, args.budget, args.energy,
                             {k: getattr(args, k) for k in ("device", "rounds", "target_ms", "energy_seconds", "seed")})
    machine = engine.Engine(args.device, args.lib, args.rounds, args.target_ms, args.energy_seconds, args.seed, args.commit)
    try:
        runner.Runner(machine, options, began=BEGAN).run(settings, args.same_run)
    except runner.DeviceLost as error:
        print(f"the device was lost: {error}", file=sys.stderr)
        return supervisor.DEVICE_LOST
    return 0


def run(args, words):
    settings = settings_of(args)
    if args.energy and args.device != "cuda":
        raise ValueError(f"--energy: there is no counter of the device {args.device}; it needs --device cuda")
    if args.plan:
        for s in settings:
            print(f"{problems.text(s)}: {' '.join(i.name for i in registry.select(s['kind'], args.impl, args.unwanted))}")
        print(f"{len(settings)} settings")
        return 0
    if args.worker:
        return work(args, settings)
    os.makedirs(args.out, exist_ok=True)
    runner.load(args.out)  # a file of another kind is refused before anything is begun
    command = [sys.executable, os.path.dirname(os.path.abspath(__file__)), *words, "--worker"]
    status = supervisor.supervise(command, args.out, args.budget, args.step_seconds, settings,
                                  lambda s: [i.name for i in registry.select(s["kind"], args.impl, args.unwanted)])
    return status or make_report(os.path.join(args.out, runner.RECORD))


def make_report(path):
    from compare import plots, report
    data, folder = runner.read(path), os.path.dirname(os.path.abspath(path))
    text = report.markdown(data)
    table = os.path.join(folder, "compare.md")
    with open(table, "w", encoding="utf-8") as file:
        file.write(text)
    print(report.summary(data))
    drawn = plots.draw(data, folder)
    print(f"{len(data['cells'])} settings in {path}, {table}, {drawn}")
    return 1 if any(r["verdict"] in ("wrong", "failed") for c in data["cells"] for n, r in c["results"].items()
                    if n == "splat") else 0


def give_advice(args):
    names, wanted = problems.kinds(args.kinds), axes_of(args)
    problems.check_axes(names, wanted)
    files = args.files or sorted(glob.glob(RESULTS))
    records, passed_over = advise.read(files, explicit=bool(args.files))
    queries = [s for name in names for s in problems.expand(name, wanted, every_axis=False)]
    answers = [advise.answer(q, records, args.impl, args.unwanted, args.by) for q in queries]
    print(advise.as_json(answers) if args.json else advise.as_text(answers, args.by))
    if passed_over and not args.json:
        print(f"({len(passed_over)} files of other kinds passed over)", file=sys.stderr)
    return 0 if all(a["exact"] or a["nearest"] for a in answers) else 1


def main(words=None):
    words = sys.argv[1:] if words is None else list(words)
    args = parser().parse_args(words)
    try:
        if args.command == "report":
            return make_report(args.file)
        if args.command == "advise":
            return give_advice(args)
        registry.load(args.load)
        return show_list() if args.command == "list" else run(args, words)
    except KeyboardInterrupt:
        print("\nbench/compare: stopped; a record holds what was measured before", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        print(f"bench/compare: {error}", file=sys.stderr)
        return 2
