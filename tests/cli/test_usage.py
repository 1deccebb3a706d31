"""splatc's words and exit codes: help, usage errors (2), unsupported requests (3), failures (1)."""

import json

import pytest

COMMANDS = {
    "dump": ["--pattern", "--mask", "--seq", "--kv-seq", "--align", "--stage", "--output", "--arch", "--dtype", "--op"],
    "explain": ["--pattern", "--mask", "--seq", "--png", "--json", "--head-dim", "--value-dim"],
    "compile": ["--pattern", "--arch", "--json", "--kv-heads", "--heads", "--batch"],
    "run": ["--q", "--k", "--v", "--out", "--lse", "--check", "--seed", "--scale", "--device", "--json"],
    "cache": ["stat", "verify", "prune", "clear", "--json"],
}


def refused(splatc, *arguments, code=2, words=()):
    done = splatc(*arguments, expect=code)
    assert done.stdout == "", "a refusal prints no result"
    assert done.stderr.startswith("splatc: ") and done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)
    return done.stderr


def test_help_lists_the_commands(splatc):
    done = splatc("--help")
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout
    assert "window(l, r)" in done.stdout and "Exit codes: 0 ok, 1 failed, 2 usage, 3 unsupported" in done.stdout
    assert splatc("-h").stdout == done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(splatc, command):
    done = splatc(command, "--help")
    assert done.stdout.startswith(f"usage: splatc {command}")
    for option in COMMANDS[command]:
        assert option in done.stdout, option
    assert splatc(command, "-h").stdout == splatc("help", command).stdout == done.stdout
    assert not any(splatc.home.iterdir()), "help touches no disk"


def test_version(splatc):
    words = splatc("--version").stdout.split()
    assert words[0] == "splatc" and words[1].count(".") == 2


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], ["command", "dump, explain, compile, run or cache"]),
        (["explode"], ["'explode'", "dump, explain"]),
        (["explain"], ["--pattern", "--mask"]),
        (["explain", "--pattern", "causal"], ["--seq"]),
        (["explain", "--pattern", "causal", "--mask", "m.npy"], ["--pattern", "--mask"]),
        (["explain", "--pattern", "causal", "--seq", "0"], ["--seq", "0", "1"]),
        (["explain", "--pattern", "causal", "--seq", "-5"], ["--seq", "-5"]),
        (["explain", "--pattern", "causal", "--seq", "ten"], ["--seq", "ten"]),
        (["explain", "--pattern", "causal", "--seq", "12x"], ["--seq", "12x"]),
        (["explain", "--pattern", "causal", "--seq", "1073741825"], ["--seq", "1073741825", "1073741824"]),
        (["explain", "--pattern", "causal", "--seq", "99999999999999999999"], ["--seq", "99999999999999999999"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--kv-seq", "0"], ["--kv-seq", "0"]),
        (["explain", "--pattern", "windw(3)", "--seq", "64"], ["column 1", "'windw'", "'window'"]),
        (["explain", "--pattern", "causal & window(", "--seq", "64"], ["column 17", "the end"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--align", "middle"], ["align", "middle", "bottom_right", "top_left"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--head-dim", "12"], ["head", "12", "8", "256"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--head-dim", "264"], ["head", "264", "256"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--value-dim", "4"], ["value", "4", "8"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--dtype", "fp64"], ["dtype", "fp64", "fp16"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--op", "gemm"], ["op", "gemm", "sddmm", "spmm_transposed"]),
        (["run", "--pattern", "causal", "--seq", "64", "--op", "spmm", "--out", "x.npy"], ["--op is spmm", "--out"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--op", "spmm_transposed", "--png", "x.png"], ["--png", "spmm_transposed"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--arch", "sm_12"], ["arch", "sm_12", "sm_80"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--device", "tpu"], ["device", "tpu", "cpu"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--heads", "6", "--kv-heads", "4"], ["heads", "6", "4"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--batch", "0"], ["--batch", "0"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--wat"], ["--wat"]),
        (["explain", "--pattern", "causal", "--sqe=64"], ["--sqe", "nearest", "--seq "]),
        (["explain", "--pattern", "causal", "--seq", "64", "--heds", "3"], ["--heds", "nearest", "--heads "]),
        (["explain", "--pattern", "causal", "--seq", "64", "--tile", "0x0"], ["0x0", "1 to 4096"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--tile", "64x9999"], ["64x9999", "1 to 4096"]),
        (["help", "explode"], ["'explode'", "dump, explain"]),
        (["explain", "--pattern", "causal", "--seq", "64", "stray"], ["stray"]),
        (["explain", "--pattern"], ["--pattern"]),
        (["explain", "--pattern", "causal", "--seq", "64", "--stage", "plan"], ["--stage"]),
        (["dump", "--pattern", "causal", "--seq", "64", "--stage", "soup"], ["stage", "soup", "acsr"]),
        (["run", "--pattern", "causal", "--seq", "64", "--scale", "0"], ["scale", "0"]),
        (["run", "--pattern", "causal", "--seq", "64", "--scale", "nan"], ["scale", "nan"]),
        (["run", "--pattern", "causal", "--seq", "64", "--seed", "x"], ["seed", "x"]),
        (["run", "--pattern", "causal", "--seq", "64", "--q", "q.npy"], ["--q", "--k", "--v"]),
        (["cache"], ["stat, verify, prune or clear"]),
        (["cache", "polish"], ["polish", "stat, verify, prune or clear"]),
        (["cache", "stat", "--max-bytes", "5"], ["--max-bytes", "prune"]),
    ],
)
def test_usage_errors_say_what_to_change(splatc, arguments, words):
    refused(splatc, *arguments, words=words)
    assert not any(splatc.home.iterdir()), "a usage error touches no disk"


def test_unsupported_is_3(splatc):
    common = ["--pattern", "causal", "--seq", "64"]
    refused(splatc, "explain", *common, "--tile", "24x40", code=3, words=["24", "40"])
    refused(splatc, "compile", *common, "--dtype", "fp32", code=3, words=["fp32"])
    refused(splatc, "dump", *common, "--dtype", "fp32", "--stage", "source", code=3, words=["fp32"])


def test_failures_are_1(splatc, tmp_path):
    common = ["--pattern", "causal", "--seq", "64"]
    refused(splatc, "explain", "--mask", "nowhere.npy", code=1, words=["nowhere.npy", "No such file"])
    refused(splatc, "dump", *common, "-o", "no/such/folder/x", code=1, words=["no/such/folder/x"])
    refused(splatc, "explain", *common, "--png", "no/such/folder/x.png", code=1, words=["no/such/folder/x.png"])
    refused(splatc, "run", *common, "--device", "cpu", "--out", "no/such/x.npy", code=1, words=["no/such/x.npy"])


def test_a_full_disk_is_a_failure(splatc_path):
    import os
    import subprocess

    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [splatc_path, "explain", "--pattern", "causal", "--seq", "64", "--json"], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1 and b"stdout" in done.stderr


def test_json_goes_to_stdout_alone(splatc):
    done = splatc("explain", "--pattern", "causal", "--seq", "64", "--json")
    json.loads(done.stdout)
    assert done.stderr == ""


def test_help_says_what_the_environment_does(splatc):
    for command in ("run", "compile", "cache"):
        text = splatc(command, "--help").stdout
        for variable in ("SPLAT_NVRTC", "SPLAT_CACHE ", "SPLAT_CACHE_DIR", "XDG_CACHE_HOME"):
            assert variable in text, (command, variable)


def test_the_cache_folder_has_one_name_everywhere(splatc, tmp_path):
    for option in ("--dir", "--cache-dir"):
        facts = json.loads(splatc("cache", "stat", option, tmp_path / "c", "--json").stdout)
        assert facts["directory"] == str(tmp_path / "c")


def test_the_cache_folder_is_checked_before_the_work(splatc, tmp_path):
    (tmp_path / "file").write_text("")
    done = splatc("compile", "--pattern", "causal", "--seq", "64", "--cache-dir", "file/c", expect=1,
                  env={"SPLAT_NVRTC": "/nowhere/libnvrtc.so"})
    assert "file/c" in done.stderr and "NVRTC" not in done.stderr, "the folder is looked at first"


def test_a_full_disk_names_the_file(splatc):
    import os

    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    for stage in ("source", "plan", "spec"):
        refused(splatc, "dump", "--pattern", "causal", "--seq", "64", "--stage", stage, "-o", "/dev/full", code=1,
                words=["/dev/full", "No space left"])
