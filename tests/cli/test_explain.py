"""splatc explain and dump: what they say, and that a mask says the same in every form."""

import json
import re
import struct
import zlib

import numpy as np
import pytest

KEYS = {
    "allowed_pairs": int,
    "density": float,
    "computed_pairs": int,
    "waste": float,
    "passes": int,
    "families": int,
    "descriptor_bytes": int,
    "plan_ms": float,
    "predicted_us": float,
}


def explain(splatc, *arguments, **more):
    return json.loads(splatc("explain", "--json", *arguments, **more).stdout)


def timeless(facts):
    return {key: value for key, value in facts.items() if key not in ("plan_ms", "pattern", "mask")}


def causal(q_len, kv_len, off):
    return np.arange(kv_len)[None, :] <= np.arange(q_len)[:, None] + off


def save_pbm(path, mask, packed):
    header = f"{'P4' if packed else 'P1'}\n# a comment\n{mask.shape[1]} {mask.shape[0]}\n".encode()
    if packed:
        body = np.packbits(mask, axis=1, bitorder="big").tobytes()
    else:
        body = "\n".join("".join("01"[int(x)] for x in row) for row in mask).encode() + b"\n"
    path.write_bytes(header + body)


def save_npy(path, array, version=(1, 0)):
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, version=version)


def test_json_holds_the_facts(splatc):
    facts = explain(splatc, "--pattern", "causal", "--seq", 1000)
    for key, kind in KEYS.items():
        assert isinstance(facts[key], (int, float) if kind is float else int), key
    assert facts["allowed_pairs"] == 1000 * 1001 // 2
    assert facts["density"] == pytest.approx(facts["allowed_pairs"] / 1000**2, rel=1e-6)
    assert facts["waste"] == pytest.approx(facts["computed_pairs"] / facts["allowed_pairs"], rel=1e-6)
    assert facts["passes"] == 1 and facts["families"] == 1 and facts["predicted_us"] > 0


def test_json_holds_every_candidate(splatc):
    facts = explain(splatc, "--pattern", "causal & (window(31, 0) | strided(32))", "--seq", 1000)
    candidates = facts["candidates"]
    plain = splatc("explain", "--pattern", "causal & (window(31, 0) | strided(32))", "--seq", 1000).stdout
    assert len(candidates) > 3 and candidates[0]["reason"] == "chosen"
    assert candidates[0]["predicted_us"] == facts["predicted_us"]
    for one in candidates:
        assert set(one) == {"summary", "reason", "predicted_us"}
        assert f"  {one['summary']}: {one['reason']}\n" in plain
    times = [one["predicted_us"] for one in candidates]
    assert times == sorted(times)


@pytest.mark.parametrize("pattern, seq", [("full", 1), ("cols(0, 1) & rows(0, 1)", 300), ("strided(150)", 130)])
def test_one_of_a_thing_is_no_plural(splatc, pattern, seq):
    mask = ["--pattern", pattern, "--seq", seq]
    said = splatc("explain", *mask).stdout + splatc("run", *mask, "--device", "cpu", "--check").stdout
    for stage in ("acsr", "plan"):
        said += splatc("dump", "--stage", stage, *mask).stdout
    wrong = r"(?<![\d.])1 (?:(?:more|allowed|partial|row|column) )*(?!times|bytes|queries of)[a-z]+(?<![us])s\b"
    assert not re.findall(wrong, said), re.findall(wrong, said)


def test_text_says_the_same(splatc):
    facts = explain(splatc, "--pattern", "window(256) | rows(0, 64)", "--seq", 4096)
    text = splatc("explain", "--pattern", "window(256) | rows(0, 64)", "--seq", 4096).stdout
    plain = text.replace(",", "").replace("_", "")
    assert str(facts["allowed_pairs"]) in plain
    assert "chosen" in text and "families" in text


def test_the_prediction_names_its_chip(splatc):
    common = ["--pattern", "causal", "--seq", 300]
    assert "on an A100" in splatc("explain", *common, "--arch", "sm_80").stdout
    assert "on an H200" in splatc("explain", *common, "--arch", "sm_90a").stdout
    assert "on an A100" in splatc("dump", "--stage", "plan", *common, "--arch", "sm_80").stdout
    for extra, reason in ((["--dtype", "fp32"], "fp32 has no GPU kernel"), (["--device", "cpu"], "--device is cpu")):
        text = splatc("explain", *common, *extra).stdout
        assert "no GPU time" in text and reason in text and "us a launch" not in text
        assert reason in splatc("dump", "--stage", "plan", *common, *extra).stdout
        facts = explain(splatc, *common, *extra)
        assert facts["cpu_only"] is True and facts["predicted_us"] > 0
    assert explain(splatc, *common, "--arch", "sm_80")["predicted_chip"] == "A100"


def test_a_mask_of_one_tile(splatc):
    verdict = explain(splatc, "--pattern", "causal", "--seq", 10)["verdict"]
    assert "One tile covers the whole mask" in verdict and "smaller than a tile" in verdict
    text = splatc("explain", "--pattern", "full - full", "--seq", 10).stdout
    assert "Nothing is allowed" in text and "for each allowed" not in text


def test_a_million_rows_explain(splatc):
    facts = explain(splatc, "--pattern", "window(256) | rows(0, 64) | cols(0, 64)", "--seq", 1048576)
    n = 1048576
    near = n * 513 - 256 * 257
    rows = 64 * n - sum(min(n, i + 257) - max(0, i - 256) for i in range(64))
    cols = 64 * n - sum(min(n, j + 257) - max(0, j - 256) for j in range(64))
    both = sum(1 for i in range(64) for j in range(64) if abs(i - j) > 256)
    assert facts["allowed_pairs"] == near + rows + cols - both
    assert facts["families"] <= 8


@pytest.mark.parametrize("align, off", [("bottom_right", 300), ("top_left", 0), ("bottom-right", 300)])
def test_alignment(splatc, align, off):
    facts = explain(splatc, "--pattern", "causal", "--seq", 100, "--kv-seq", 400, "--align", align)
    assert facts["allowed_pairs"] == causal(100, 400, off).sum()


def test_nothing_allowed(splatc):
    facts = explain(splatc, "--pattern", "full - full", "--seq", 100)
    assert facts["allowed_pairs"] == 0 and facts["computed_pairs"] == 0 and facts["waste"] == 0


@pytest.mark.parametrize("form", ["npy-bool", "npy-uint8", "npy-int8", "npy-2.0", "npy-3.0", "pbm-P1", "pbm-P4"])
def test_a_file_explains_as_the_expression(splatc, tmp_path, form):
    mask = causal(130, 203, 73) & ~((np.arange(130)[:, None] % 3 == 1) & (np.arange(203)[None, :] % 5 == 0))
    i, j = np.arange(130)[:, None], np.arange(203)[None, :]
    mask = causal(130, 203, 73) & ((i - j) % 3 == 0) | (j < 4) & (i < 130)
    kind, detail = form.split("-")
    path = tmp_path / ("mask.npy" if kind == "npy" else "mask.pbm")
    if kind == "pbm":
        save_pbm(path, mask, detail == "P4")
    elif detail == "uint8":
        save_npy(path, mask.astype(np.uint8) * 200)
    elif detail == "int8":
        save_npy(path, -mask.astype(np.int8))
    else:
        save_npy(path, mask, (int(detail[0]), 0) if detail[0].isdigit() else (1, 0))
    expression = "causal & strided(3) | cols(0, 4)"
    spoken = explain(splatc, "--pattern", expression, "--seq", 130, "--kv-seq", 203)
    read = explain(splatc, "--mask", path)
    assert timeless(read) == timeless(spoken)
    assert read["allowed_pairs"] == mask.sum()
    for stage in ("acsr", "plan", "spec", "source"):
        a = splatc("dump", "--stage", stage, "--pattern", expression, "--seq", 130, "--kv-seq", 203).stdout
        b = splatc("dump", "--stage", stage, "--mask", path).stdout
        drop = lambda text: [line for line in text.splitlines() if " ms" not in line]
        assert drop(a) == drop(b), stage


def test_a_mask_comes_through_a_pipe(splatc, tmp_path):
    mask = causal(40, 50, 10)
    save_npy(tmp_path / "m.npy", mask)
    with open(tmp_path / "m.npy", "rb") as file:
        facts = explain(splatc, "--mask", "/dev/stdin", stdin=file)
    assert facts["allowed_pairs"] == mask.sum()


BAD_FILES = {
    "float": (lambda: np.ones((4, 4), np.float32), ["<f4", "bool"]),
    "int32": (lambda: np.ones((4, 4), np.int32), ["<i4", "int32", "bool"]),
    "int64": (lambda: np.ones((4, 4), np.int64), ["<i8", "int64", "bool"]),
    "fortran": (lambda: np.asfortranarray(np.ones((4, 5), bool)), ["Fortran", "C order"]),
    "one axis": (lambda: np.ones(16, bool), ["1 axis", "2"]),
    "three axes": (lambda: np.ones((2, 2, 2), bool), ["3 axes", "2", "splat_mask_map"]),
    "no rows": (lambda: np.ones((0, 4), bool), ["axis 0", "at least 1"]),
    "no columns": (lambda: np.ones((4, 0), bool), ["axis 1", "at least 1"]),
    "structured": (lambda: np.zeros((4, 4), [("a", "u1")]), ["header"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_other_arrays_are_refused_with_a_reason(splatc, tmp_path, name):
    make, words = BAD_FILES[name]
    save_npy(tmp_path / "bad.npy", make())
    done = splatc("explain", "--mask", "bad.npy", expect=2)
    for word in ["bad.npy", *words]:
        assert word in done.stderr, done.stderr


def test_broken_npy_files_are_refused(splatc, tmp_path):
    save_npy(tmp_path / "good.npy", causal(40, 60, 20))
    good = (tmp_path / "good.npy").read_bytes()
    path = tmp_path / "bad.npy"
    path.write_bytes(good)
    splatc("explain", "--mask", path)
    for size in list(range(0, 140, 3)) + [len(good) - 1]:
        path.write_bytes(good[:size])
        done = splatc("explain", "--mask", path, expect=2)
        assert "bad.npy" in done.stderr, size
    for text in (good + b"x", good[:6] + b"\x09" + good[7:], good.replace(b"False", b"Maybe"), good[:60] + b"{" + good[61:]):
        path.write_bytes(text)
        splatc("explain", "--mask", path, expect=2)
    path.write_bytes(good.replace(b"(40, 60)", b"(40,9999999999999999999999)"[:8].ljust(8)))
    splatc("explain", "--mask", path, expect=2)


@pytest.mark.parametrize(
    "content, word",
    [
        (b"P1\n3 2\n101 01", "truncated"),
        (b"P1\n3 2\n101 012", "0x32"),
        (b"P4\n9 2\n\xff\xff\xff", "truncated"),
        (b"P4\n0 2\n", "width"),
        (b"P1\n3\n", "height"),
        (b"P1\n3 -2\n101", "height"),
        (b"P5\n3 2\n255\nabcdef", "P1, P4"),
        (b"P1\n99999999999 2\n1", "width"),
        (b"P4\n1000000000 1000000000\n1", "truncated"),
        (b"hello", "no mask"),
        (b"", "no mask"),
    ],
)
def test_broken_pbm_files_are_refused(splatc, tmp_path, content, word):
    (tmp_path / "bad.pbm").write_bytes(content)
    done = splatc("explain", "--mask", "bad.pbm", expect=2)
    assert "bad.pbm" in done.stderr and word in done.stderr


def test_lengths_must_agree_with_the_file(splatc, tmp_path):
    save_npy(tmp_path / "m.npy", causal(40, 60, 20))
    explain(splatc, "--mask", "m.npy", "--seq", 40, "--kv-seq", 60)
    done = splatc("explain", "--mask", "m.npy", "--seq", 41, expect=2)
    assert "--seq" in done.stderr and "41" in done.stderr and "40" in done.stderr
    done = splatc("explain", "--mask", "m.npy", "--kv-seq", 61, expect=2)
    assert "--kv-seq" in done.stderr and "61" in done.stderr and "60" in done.stderr


# ---- dump ----


def test_dump_stages(splatc):
    common = ["--pattern", "window(256)", "--seq", 2048, "--arch", "sm_80", "--dtype", "fp16"]
    acsr = splatc("dump", "--stage", "acsr", *common).stdout
    assert "2048" in acsr and "famil" in acsr
    plan = splatc("dump", "--stage", "plan", *common).stdout
    assert "chosen" in plan and "pass" in plan
    spec = splatc("dump", "--stage", "spec", *common).stdout
    assert "fp16" in spec and "sm_80" in spec and "64" in spec
    source = splatc("dump", "--stage", "source", *common).stdout
    assert source.startswith("//") or source.startswith("/*"), "the source opens with what it is"
    assert "__global__" in source and "#include" not in source.replace("#include <", ""), "one flat text"
    assert splatc("dump", *common).stdout == source, "source is the default stage"


def test_source_of_a_tile_shape_does_not_depend_on_lengths_batch_or_heads(splatc):
    common = ["dump", "--pattern", "window(256)", "--tile", "64x64"]
    base = splatc(*common, "--seq", 2048).stdout
    for other in (["--seq", 4096], ["--seq", 2048, "--kv-seq", 2048, "--batch", 3], ["--seq", 2048, "--heads", 4]):
        assert splatc(*common, *other).stdout == base
    assert splatc(*common, "--seq", 2048, "--dtype", "fp16").stdout != base


def test_dump_to_a_file_is_whole_or_not_at_all(splatc, tmp_path):
    common = ["--pattern", "causal", "--seq", 256]
    want = splatc("dump", *common).stdout
    done = splatc("dump", *common, "-o", "out.cu")
    assert done.stdout == "" and (tmp_path / "out.cu").read_text() == want
    assert splatc("dump", *common, "-o", "-").stdout == want
    (tmp_path / "out.cu").write_text("precious")
    splatc("dump", *common, "--dtype", "fp32", "-o", "out.cu", expect=3)
    assert (tmp_path / "out.cu").read_text() == "precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "out.cu"], "no temporaries are left"


# ---- pictures ----


def read_png(path):
    """Width, height and RGB or RGBA or palette rows, with every checksum verified; filters undone."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, body, palette = 8, b"", None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        chunk = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + chunk)
        if kind == b"IHDR":
            width, height, depth, color = struct.unpack(">IIBB", chunk[:10])
        elif kind == b"PLTE":
            palette = chunk
        elif kind == b"IDAT":
            body += chunk
        at += 12 + size
    assert kind == b"IEND"
    return width, height, depth, color, palette, zlib.decompress(body)


def test_png_is_a_picture_of_the_mask(splatc, tmp_path):
    splatc("explain", "--pattern", "window(20) | rows(0, 8)", "--seq", 300, "--png", "m.png")
    width, height, depth, color, palette, raw = read_png(tmp_path / "m.png")
    assert width >= 256 and height >= 256
    splatc("explain", "--pattern", "full - full", "--seq", 300, "--png", "empty.png")
    assert read_png(tmp_path / "empty.png")[5] != raw
    splatc("explain", "--pattern", "window(20)", "--seq", 1048576, "--png", "big.png")
    width, height, *_ = read_png(tmp_path / "big.png")
    assert width <= 8192 and height <= 8192, "a long mask is drawn smaller, not bigger"
