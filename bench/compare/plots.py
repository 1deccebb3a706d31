"""Pictures of a record: times over the floor, how they move with the size, and energy. Takes the JSON alone; matplotlib draws."""
import math
import os

from compare import problems, report
from suite import geometric_mean

MISSING = ("no plots, for matplotlib is not installed here: pip install -r bench/requirements.txt, then "
           "python3 bench/compare report FILE, on any machine that has the JSON")
SIZE_AXIS = {"kron": "n"}  # the others: seq


def draw(data, folder):
    """Writes PNG files; returns their names, or the sentence that says why there are none."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return MISSING
    written = []
    for kind in report.kinds_of(data):
        for dtype, cells in by_dtype(report.cells_of(data, kind)).items():
            name = f"{kind}-{dtype}"
            written += save(pyplot, over_floor(pyplot, name, cells), folder, f"{name}-floor.png")
            written += save(pyplot, by_size(pyplot, kind, name, cells), folder, f"{name}-size.png")
            written += save(pyplot, energies(pyplot, name, cells), folder, f"{name}-energy.png")
    return ", ".join(written) or "no plots, for nothing was measured"


def save(pyplot, figure, folder, name):
    if figure is None:
        return []
    figure.savefig(os.path.join(folder, name), dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return [name]


def by_dtype(cells):
    out = {}
    for c in cells:
        out.setdefault(c["setting"]["dtype"], []).append(c)
    return out


def label(setting):
    return problems.text({k: v for k, v in setting.items() if k not in ("kind", "dtype")})


def styles(names):
    """A colour and a marker for each implementation; ours is black."""
    others = [n for n in names if n != report.OURS]
    out = {n: {"color": f"C{i % 10}", "marker": "os^vD<>ph"[i % 9]} for i, n in enumerate(others)}
    return {**out, report.OURS: {"color": "black", "marker": "*"}}


def dots(pyplot, title, xlabel, cells, value):
    """One row a setting, one dot an implementation, on a logarithmic axis."""
    cells = [c for c in cells if any(value(c, n) for n in c["results"])]
    if not cells:
        return None
    cells = sorted(cells, key=lambda c: min(v for v in (value(c, n) for n in c["results"]) if v), reverse=True)
    names = report.names_of(cells)
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.22 * len(cells)))
    style = styles(names)
    for name in names:
        points = [(value(c, name), row) for row, c in enumerate(cells) if value(c, name)]
        if points:
            axes.scatter(*zip(*points), label=name, s=36 if name != report.OURS else 90, **style[name])
    axes.set_xscale("log")
    axes.set_yticks(range(len(cells)), [label(c["setting"]) for c in cells], fontsize=7)
    axes.grid(axis="both", alpha=0.3)
    axes.set_xlabel(xlabel)
    axes.set_title(title)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def over_floor(pyplot, title, cells):
    figure = dots(pyplot, title, "time / floor", cells,
                  lambda c, n: report.ratio(report.ms(c, n), c.get("floor_ms")))
    if figure is not None:
        figure.axes[0].axvline(1.0, color="grey", linewidth=1)
    return figure


def energies(pyplot, title, cells):
    return dots(pyplot, title, "mJ a call, net of idle", cells,
                lambda c, n: max(report.energy(c, n) or 0, 0) or None)


def by_size(pyplot, kind, title, cells):
    """Geometric mean of time / floor against the size axis, over settings that were measured at every size."""
    axis = SIZE_AXIS.get(kind, "seq")
    sizes = sorted({c["setting"][axis] for c in cells})
    if len(sizes) < 2:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    names, drawn = report.names_of(cells), False
    for name, style in styles(names).items():
        line = curve(cells, axis, sizes, name)
        if line:
            axes.plot(*zip(*line), label=name, **style)
            drawn = True
    if not drawn:
        pyplot.close(figure)
        return None
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel(axis)
    axes.set_ylabel("time / floor, geometric mean")
    axes.grid(alpha=0.3)
    axes.set_title(title)
    axes.legend(fontsize=8)
    return figure


def curve(cells, axis, sizes, name):
    """[(size, geometric mean of time / floor)] over the settings that have this implementation at every size."""
    found = {}
    for c in cells:
        r = report.ratio(report.ms(c, name), c.get("floor_ms"))
        rest = tuple((k, v) for k, v in c["setting"].items() if k != axis)
        if r and math.isfinite(r):
            found.setdefault(rest, {})[c["setting"][axis]] = r
    whole = [f for f in found.values() if len(f) == len(sizes)]
    return [(size, geometric_mean([f[size] for f in whole])) for size in sizes] if whole else []
