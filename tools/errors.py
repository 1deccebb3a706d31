#!/usr/bin/env python3
"""Writes docs/errors.md from the source: every status, its exit code, and every sentence of a failure.

    tools/errors.py          writes the file
    tools/errors.py --check  fails when the file is not what would be written

A sentence is the format string of a call of sp_fail, or of what feeds one: the reasons that the driver, NVRTC, cubins
and patterns are refused for. What a format fills in stands as N for a number, TEXT for words.
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "errors.md"

AREAS = {
    "common": "structs that callers fill",
    "cli": "the tool",
    "acsr": "masks, patterns and ACSRs",
    "analysis": "options and plans",
    "codegen": "kernels as text",
    "runtime": "compiling, the cache, running",
}


def without_comments(text):
    """The same text, blanks for comments, strings kept."""
    pattern = r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|/\*.*?\*/|//[^\n]*'
    keep = lambda match: match[0] if match[0][0] in "\"'" else " "
    return re.sub(pattern, keep, text, flags=re.S)


def arguments(text, at):
    """The arguments of the call whose parenthesis opens at text[at], as they are written."""
    depth, parts, begin, i = 0, [], at + 1, at
    while True:
        c = text[i]
        if c in "\"'":
            i += 1
            while text[i] != c:
                i += 2 if text[i] == "\\" else 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                parts.append(text[begin:i].strip())
                return parts
        elif c == "," and depth == 1:
            parts.append(text[begin:i].strip())
            begin = i + 1
        i += 1


def literal(expression):
    """A format string out of its pieces; None when the expression is no string."""
    if not expression.startswith('"'):
        return None
    text = ""
    for piece in re.finditer(r'"((?:\\.|[^"\\])*)"|(PRI\w+)|(\w+)', expression):
        if piece[1] is not None:
            text += piece[1].encode().decode("unicode_escape")
        elif piece[2]:
            text += {"d": "d", "u": "u", "x": "x", "i": "d"}[piece[2][3]]
        else:
            return None
    return text


CONVERSION = re.compile(r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j|t)?([diouxXeEfgGcsp%])")


def shown(text):
    names = {"s": "TEXT", "c": "TEXT", "%": "%", "p": "N"}
    return CONVERSION.sub(lambda match: names.get(match[1], "N"), text)


def calls(name, text):
    for match in re.finditer(rf"\b{name}\(", text):
        yield arguments(text, match.end() - 1)


def statuses_of(expression):
    """The statuses that the first argument of sp_fail may have; [""] for that of an earlier failure."""
    return re.findall(r"SPLAT_[A-Z_]+", expression) or [""]


def collect():
    """{status: {area: {sentence}}}, {what memory is for}, {area: {message of the log}}."""
    sentences = collections.defaultdict(lambda: collections.defaultdict(set))
    memory, log = set(), collections.defaultdict(set)
    for path in sorted((ROOT / "src").glob("*/*.c")):
        text, area = without_comments(path.read_text()), path.parent.name
        if area == "common":  # what it defines is no sentence; that of sp_no_memory has a chapter of its own
            found = [(status, literal(form)) for status, form, *_ in calls("sp_fail", text) if literal(form)]
            for status, sentence in found:
                if status != "SPLAT_NO_MEMORY":
                    sentences[status][area].add(shown(sentence))
            continue
        for status, form, *_ in calls("sp_fail", text):
            found = literal(form)
            assert found is not None, f"{path}: the sentence of sp_fail({status}, {form}) is no string"
            if found != "%s":
                for name in statuses_of(status):
                    sentences[name][area].add(shown(found))
        for what, *_ in calls("sp_no_memory", text):
            memory.add(literal(what) or "TEXT")
        for call in calls("sp_log_message", text):
            if len(call) > 2 and literal(call[2]):
                log[area].add(f"{'warning' if 'WARNING' in call[1] else 'info'}: {shown(literal(call[2]))}")
        for buffer, size, form, *_ in (call for call in calls("snprintf", text) if len(call) > 2):
            found = literal(form)
            if path.name in ("driver.c", "nvrtc.c") and buffer == "reason":
                sentences["SPLAT_NO_DEVICE"][area].add(shown(found))
            elif path.name == "patterns.c" and buffer == "message":
                sentences["SPLAT_INVALID"][area].add("pattern, column N: TEXT: " + shown(found))
            elif path.name == "cubin.c" and buffer == "fault":
                sentences["SPLAT_COMPILE"][area].add("kernel TEXT is not loaded: its image " + shown(found))
    return sentences, memory, log


def statuses():
    """(name, meaning) of every status, from the header."""
    header = (ROOT / "include" / "splat.h").read_text()
    body = re.search(r"enum splat_status \{(.*?)\};", header, flags=re.S)[1]
    found = re.findall(r"(SPLAT_[A-Z_]+)(?: = 0)?,?(?:[ \t]*/\*(.*?)\*/)?", body, flags=re.S)
    return [(name, " ".join(meaning.split()) or "it worked") for name, meaning in found]


def exit_codes():
    """{status: exit code}, from the table of the tool."""
    numbers = dict(re.findall(r"(SP_EXIT_[A-Z]+) = (\d+)", (ROOT / "src/cli/cli.h").read_text()))
    table = re.search(r"exit_codes\[\] = \{(.*?)\};", (ROOT / "src/cli/main.c").read_text(), flags=re.S)[1]
    return {name: int(numbers[code]) for name, code in re.findall(r"\[(SPLAT_[A-Z_]+)\] = (SP_EXIT_[A-Z]+)", table)}


def page():
    sentences, memory, log = collect()
    codes = exit_codes()
    lines = [
        "# Failures",
        "",
        "Made by `tools/errors.py` from the source; a test checks that it is up to date. Every failing call of the library returns a",
        "status and keeps one sentence (`splat_last_error()`); the tool prints it to stderr after `splatc: ` and exits with the code",
        "of the status. N stands for a number, TEXT for words.",
        "",
        "| status | exit code of splatc | meaning |",
        "|---|---|---|",
    ]
    names = statuses()
    assert [name for name, _ in names] == list(
        codes
    ), "the exit codes of src/cli/main.c and the statuses of splat.h differ"
    lines += [f"| `{name}` | {codes[name]} | {meaning} |" for name, meaning in names]
    for name, _ in names + [("", "")]:
        if name == "SPLAT_NO_MEMORY":
            lines += ["", f"## {name}", "", "    no memory for TEXT: N bytes were asked for", "", "TEXT is one of:", ""]
            lines += ["    " + what for what in sorted(memory)]
        elif sentences[name]:
            lines += ["", f"## {name}" if name else "## The status of the failure it adds to"]
        for area in AREAS:
            if sentences[name][area]:
                lines += ["", f"{AREAS[area][0].upper()}{AREAS[area][1:]} (`src/{area}`):", ""]
                lines += ["    " + sentence for sentence in sorted(sentences[name][area])]
    lines += ["", "## What the log callback hears", "", "The tool prints these to stderr, unless `--quiet`.", ""]
    lines += ["    " + message for message in sorted(set().union(*log.values()))]
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != page():
            sys.exit("docs/errors.md is not what the source says: run tools/errors.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
