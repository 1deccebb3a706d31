"""docs/errors.md is what the source says, and what splatc says when it fails is in it, with the exit code it gives."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "errors.md"


def test_the_page_is_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "tools" / "errors.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


HOLES = r"TEXT|(?<=0x)N|(?<![A-Za-z])N(?![A-Za-z])"


def pattern(part):
    """Of what may stand for a piece of a sentence; the N of `--seq N` is a letter."""
    return r".*" if part == "TEXT" else r"(?:N|[-+.\da-f]+|inf|nan)" if part == "N" else re.escape(part)


def listed():
    """{status: exit code} and {status: [pattern of a sentence]} as the page has them."""
    text = PAGE.read_text()
    codes = {name: int(code) for name, code in re.findall(r"^\| `(SPLAT_\w+)` \| (\d) \|", text, flags=re.M)}
    sentences = {}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        name, _, body = section.partition("\n")
        lines = [line[4:] for line in body.splitlines() if line.startswith("    ")]
        sentences[name] = [re.compile("".join(map(pattern, re.split(f"({HOLES})", line)))) for line in lines]
    return codes, sentences


def test_every_status_has_its_sentences():
    codes, sentences = listed()
    assert len(codes) == 9
    for name in codes:
        assert name == "SPLAT_OK" or sentences.get(name), name
    assert sum(map(len, sentences.values())) > 200
    for line in PAGE.read_text().splitlines():
        assert not (line.startswith("    ") and line.rstrip().endswith(".")), f"a sentence ends in a full stop: {line}"


@pytest.fixture
def files(tmp_path):
    np.save(tmp_path / "mask.npy", np.tril(np.ones((8, 8), bool)))
    np.save(tmp_path / "f64.npy", np.ones((8, 8)))
    np.save(tmp_path / "cube.npy", np.ones((2, 2, 2), bool))
    np.save(tmp_path / "q.npy", np.ones((1, 1, 8, 16), np.float32))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "mask.npy").read_bytes()[:-3])
    (tmp_path / "escape.npy").write_bytes((tmp_path / "mask.npy").read_bytes().replace(b"|b1", b"|\x1b["))
    (tmp_path / "cut.pbm").write_text("P1 9 9\n0101")
    (tmp_path / "two.pbm").write_text("P1 2 1\n0 2")
    (tmp_path / "words.txt").write_text("no mask at all")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    return tmp_path


CAUSAL = ["--pattern", "causal", "--seq", "64"]
COMPILE = ["compile", *CAUSAL, "--arch", "sm_80"]

FAILURES = {
    "SPLAT_INVALID": [
        [],
        ["explode"],
        ["explain"],
        ["explain", *CAUSAL, "--no-such-option"],
        ["explain", "--pattern", "causal"],
        ["explain", "--pattern", "windoe(3)", "--seq", "64"],
        ["explain", "--pattern", "causal & \x1b[31m", "--seq", "64"],
        ["explain", "--pattern", "window(-1)", "--seq", "64"],
        ["explain", "--pattern", "window(1, 2, 3)", "--seq", "64"],
        ["explain", "--pattern", "documents(3, 4)", "--seq", "64"],
        ["explain", "--pattern", "window(99999999999999999999)", "--seq", "64"],
        ["explain", "--pattern", "(" * 300, "--seq", "64"],
        ["explain", *CAUSAL, "--head-dim", "12"],
        ["explain", "--pattern", "causal", "--seq", "0"],
        ["explain", *CAUSAL, "--mask", "mask.npy"],
        ["explain", "--mask", "f64.npy"],
        ["explain", "--mask", "cube.npy"],
        ["explain", "--mask", "cut.npy"],
        ["explain", "--mask", "escape.npy"],
        ["explain", "--mask", "cut.pbm"],
        ["explain", "--mask", "two.pbm"],
        ["explain", "--mask", "words.txt"],
        ["explain", "--mask", "mask.npy", "--seq", "9"],
        ["explain", *CAUSAL, "--png", "-"],
        ["dump", *CAUSAL, "--stage", "soup"],
        ["run", *CAUSAL, "--heads", "3", "--kv-heads", "2"],
        ["run", *CAUSAL, "--q", "q.npy"],
        ["run", *CAUSAL, "--out", "x.npy", "--lse", "x.npy"],
        ["cache"],
        ["cache", "burn"],
        ["cache", "stat", "--max-bytes", "5"],
    ],
    "SPLAT_UNSUPPORTED": [
        ["compile", *CAUSAL, "--dtype", "fp32"],
        ["explain", *CAUSAL, "--tile", "3x5"],
    ],
    "SPLAT_IO": [
        ["explain", "--mask", "nowhere.npy"],
        ["explain", *CAUSAL, "--png", "nowhere/x.png"],
        ["dump", *CAUSAL, "--stage", "plan", "-o", "nowhere/x"],
        [*COMPILE, "--cache-dir", "open"],
        [*COMPILE, "--cache-dir", "open/below"],
        [*COMPILE, "--cache-dir", "words.txt/below"],
    ],
    "SPLAT_NO_DEVICE": [["compile", *CAUSAL, "--arch", "sm_80"]],  # with SPLAT_NVRTC=/nonexistent
}


@pytest.mark.parametrize(
    "status, arguments",
    [(s, a) for s, all in FAILURES.items() for a in all],
    ids=lambda x: " ".join(x)[:40] if isinstance(x, list) else x,
)
def test_failures_are_listed(splatc, files, status, arguments):
    codes, sentences = listed()
    env = {"SPLAT_NVRTC": "/nonexistent"} if status == "SPLAT_NO_DEVICE" else {}
    done = splatc(*arguments, expect=codes[status], cwd=files, env=env)
    assert done.stdout == ""
    said = [line.removeprefix("splatc: ") for line in done.stderr.splitlines()]
    assert len(said) == 1 and done.stderr.startswith("splatc: "), done.stderr
    assert said[0].isprintable()
    assert any(form.fullmatch(said[0]) for form in sentences[status]), (said[0], status)
