"""Tables, plots and advice from a record alone."""

import json
import subprocess
import sys

import pytest
from stand_in import ROOT, kron, sddmm

import table
from compare import advise, cli, plots, report, runner

TIMES = {"splat": 1.0, "bmm": 2.0, "dense": 4.0}


@pytest.fixture
def recorded(own, measure):
    """A record of three batches in two layouts, d > 1 and d = 1, in which dense is wrong batch first."""
    for name, ms in TIMES.items():
        @own("kron", name)
        def make(p, data, ms=ms, name=name):
            return ms * p.n / 256, {"wrong": ["set 0: off"] if name == "dense" and p.layout == "batch_first" else []}
    settings = [kron(n, shape, layout=layout) for shape in ("4,64,64,64", "16,128,128,1") for n in (256, 1024, 4096)
                for layout in ("batch_first", "batch_last")]
    data = measure(settings, energy=True)
    del data["said"]
    return data


def test_markdown(recorded):
    text = report.markdown(recorded)
    row = next(line for line in text.splitlines() if line.startswith("| 4,64,64,64 forward n 1024 fp16 batch_first |"))
    cells = [c.strip() for c in row.strip("|").split("|")]
    assert cells[2:] == ["memory", "**4**", "8", "wrong", f"{4 / float(cells[1]):.2f}", "2.00"]
    assert "- dense wrong (6 settings, as 4,64,64,64 forward n 256 fp16 batch_first): set 0: off" in text
    assert "800 (1000)" in text and "matrix product 1000.0 TFLOP/s fp16; copy 1.00 TB/s" in text
    recorded["cells"][0]["results"]["bmm"]["run"] = 7
    assert "| 2* |" in report.markdown(recorded)


def test_summary_groups_and_figures(recorded):
    lines = report.summary(recorded).splitlines()
    assert len(lines) == 2 + 4
    row = next(line for line in lines if line.startswith("| kron forward fp16 batch_last d > 1 |"))
    cells = [c.strip() for c in row.strip("|").split("|")]
    assert cells[1:3] == ["3", "splat 3"] and cells[5:] == ["2.00", "2.00", "2.00", "1.00"]
    f = report.figures(recorded["cells"])
    assert f["speedup_least"] == 2.0 and f["peer_over_floor"] == pytest.approx(2 * f["ours_over_floor"])


def test_a_record_without_ours_and_with_an_empty_cell(recorded):
    for cell in recorded["cells"]:
        cell["results"].pop("splat")
        cell["best"] = runner.best(cell["results"])
    recorded["cells"].append({"setting": kron(5), "run": 0, "results": {"bmm": {"verdict": "failed", "reason": "inputs: gone"}}})
    recorded["left_out"] = ["something"]
    text = report.markdown(recorded)
    assert "bmm failed (1 settings" in text and "The budget was spent before: something." in text
    assert "| 5" not in report.summary(recorded)


def test_table_script_knows_the_kind(recorded, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["table.py", str(tmp_path / "compare.json")])
    assert table.main() == 0 and "## Comparison, run 1" in capsys.readouterr().out


# ---- plots ----


def test_curves_take_settings_that_have_every_size(recorded):
    cells = report.cells_of(recorded, "kron")
    sizes = [256, 1024, 4096]
    line = plots.curve(cells, "n", sizes, "splat")
    ratios = {n: [c["results"]["splat"]["ms"] / c["floor_ms"] for c in cells if c["setting"]["n"] == n] for n in sizes}
    expected = [report.geometric_mean(r) for r in ratios.values()]
    assert [n for n, _ in line] == sizes and [v for _, v in line] == pytest.approx(expected)
    last = plots.curve(cells, "n", sizes, "dense")  # right in one layout alone
    one = [c for c in cells if c["setting"]["layout"] == "batch_last"]
    assert last == plots.curve(one, "n", sizes, "dense") and last
    assert plots.curve(cells, "n", sizes, "none") == []


def test_without_matplotlib_a_sentence(recorded, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "matplotlib is not installed" in plots.draw(recorded, str(tmp_path))


def test_pictures(recorded, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib draws the plots: pip install -r bench/requirements.txt")
    names = plots.draw(recorded, str(tmp_path)).split(", ")
    assert names == ["kron-fp16-floor.png", "kron-fp16-size.png", "kron-fp16-energy.png"]
    for name in names:
        assert (tmp_path / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and (tmp_path / name).stat().st_size > 5000


# ---- advice ----


def ask(data, wanted, **options):
    return advise.answer(wanted, [("a.json", data)], **options)


def test_advice_for_a_recorded_setting(recorded):
    (choice,) = ask(recorded, kron(1024))["exact"]
    assert choice["best"] == "splat" and choice["next"] == "bmm" and choice["next_over_best"] == 2.0 and choice["ms"] == 4.0
    assert choice["over_floor"] == pytest.approx(4.0 / choice["floor_ms"]) and choice["gpu"] == "stand-in"
    (choice,) = ask(recorded, kron(1024), names=["*"], unwanted=["splat"])["exact"]
    assert (choice["best"], choice["next"]) == ("bmm", "dense")
    (choice,) = ask(recorded, kron(1024, layout="batch_first"), unwanted=["splat"])["exact"]
    assert choice["next"] is None and choice["passed_over"] == {"dense": "wrong"}


def test_open_axes_match_every_recorded_value(recorded):
    assert len(ask(recorded, {"kind": "kron", "n": 256})["exact"]) == 4
    assert len(ask(recorded, {"kind": "kron"})["exact"]) == 12


def test_the_nearest_is_shown_as_what_it_is(recorded):
    a = ask(recorded, kron(1500, dtype="bf16"))
    assert a["exact"] == [] and len(a["nearest"]) == 3 and a["nearest"][0]["setting"] == kron(1024)
    text = advise.as_text([a])
    assert text.startswith("kron 4,64,64,64 forward n 1500 bf16 batch_last: not recorded; the nearest settings that are:")
    assert "(n 1024 instead of 1500, dtype fp16 instead of bf16)" in text
    assert "splat: 4 ms" in text and "next is bmm at 2.00 times the time" in text


def test_another_kind_is_never_near(recorded):
    a = ask(recorded, sddmm())
    assert a["exact"] == a["nearest"] == [] and "nothing of this kind is recorded" in advise.as_text([a])


def test_distances_order_what_is_alike():
    near = [kron(), kron(dtype="bf16"), kron(n=512), kron(layout="batch_first"), kron(n=1 << 14), kron(op="grad_weight", n=1 << 14)]
    away = [advise.distance(kron(), s) for s in near]
    assert away == sorted(away) and away[0] == 0


def test_the_latest_record_counts(recorded):
    newer = json.loads(json.dumps(recorded))
    newer["runs"][0]["meta"]["date"] = "2027-01-01 00:00:00 UTC"
    for cell in newer["cells"]:
        cell["results"]["bmm"]["ms"] = 0.5
    (choice,) = advise.answer(kron(1024), [("new.json", newer), ("old.json", recorded)])["exact"]
    assert choice["best"] == "bmm" and choice["file"] == "new.json"


def test_by_energy(recorded):
    recorded["cells"][0]["results"]["bmm"]["energy"]["net_mj"] = 1.0
    (choice,) = ask(recorded, recorded["cells"][0]["setting"], by="energy")["exact"]
    assert choice["best"] == "bmm" and choice["next_over_best"] == 800.0


# ---- the command line ----


def compare(*words):
    return subprocess.run([sys.executable, str(ROOT / "bench" / "compare"), *map(str, words)], capture_output=True, text=True, timeout=120)


def test_advise_command(recorded, tmp_path):
    file = tmp_path / "compare.json"
    done = compare("advise", "kron", "--shape", "4,64,64,64", "--n", "1024", "--layout", "batch_last", "--from", file)
    assert done.returncode == 0 and "splat: 4 ms" in done.stdout and "2026-01-02" in done.stdout
    done = compare("advise", "kron", "--n", "1024", "--json", "--from", file)
    assert len(json.loads(done.stdout)[0]["exact"]) == 4
    assert compare("advise", "sddmm", "--seq", "1024", "--from", file).returncode == 1
    done = compare("advise", "kron", "--seq", "1024", "--from", file)
    assert done.returncode == 2 and "--seq: no such axis in kron" in done.stderr
    other = tmp_path / "other.json"
    other.write_text('{"kind": "time"}')
    done = compare("advise", "kron", "--from", other)
    assert done.returncode == 2 and "its kind is 'time'" in done.stderr


def test_advice_from_the_recorded_results_passes_other_kinds_over(capsys):
    assert cli.main(["advise", "kron", "--n", "25088"]) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_list_and_plan():
    done = compare("list")
    assert done.returncode == 0 and "bmm_views " in done.stdout and "--shape 64,48,48,4" in done.stdout
    done = compare("run", "kron", "--n", "16", "--dtype", "fp32", "--impl", "bmm*", "--not", "*loop", "--plan")
    assert done.returncode == 0 and "26 settings" in done.stdout
    assert "kron 64,48,48,4 forward n 16 fp32 batch_first: bmm_views bmm_permute\n" in done.stdout
    done = compare("run", "kron", "--impl", "bmmm", "--plan")
    assert done.returncode == 2 and "bmmm: no such implementation of kron" in done.stderr


def test_an_implementation_from_outside(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text('from compare.registry import implementation\n@implementation("kron", "mine")\n'
                                      'def mine(p, data):\n    "My own"\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = compare("list", "--load", "mine")
    assert done.returncode == 0 and "mine             My own" in done.stdout
    assert compare("list", "--load", "not_there").returncode == 2
