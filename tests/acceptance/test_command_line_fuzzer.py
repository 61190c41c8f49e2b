"""Random command lines, from a seed: no traceback, no hang, no growth of memory.

The lines are called in one process, which is faster than a process for each. A failure names the
seed and the number of its line, which repeat it: `make test-chaos ARGS="--chaos-seed 7"`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests import fork_server

_HANG = 5  #: seconds
_GROWTH = 200  #: MB

MODULE = """
from flowengine import event_facet, foreach, workflow

@event_facet
def one(n: int) -> int:
    if n > 5:
        raise ValueError(f"[/b] \\x1b[31m {n}\\n")
    return n

@workflow
def flow(n: int, text: str = "", any: object = None) -> int:
    return one(n)

@workflow
def other(ns: list[int]) -> list[int]:
    return foreach(ns, lambda n: one(n))
"""
AFL = """
namespace shop {
    event facet Price(item: String) => (cents: Long)
    workflow Order(item: String = "tea") => (cents: Long) andThen {
        p = Price(item = $.item)
        yield Order(cents = p.cents)
    }
}
"""
FILES = {
    "ours.py": MODULE,
    "shop.afl": AFL,
    "syntax.py": "import (\n",
    "raises.py": "raise KeyError('at import')\n",
    "empty.py": "",
    "deep.json": "[" * 50_000,
    "cut.json": '{"type": ',
    "wrong.json": '{"type": "Program", "declarations": [{"type": "Namespace", "name": 5}]}',
    "no.db": "not a database" * 500,
    "value.txt": "[1, 2",
}
VALID = [
    ["run", "ours:flow", "-i", "n=1"],
    ["run", "ours.py:flow", "-i", "n=7", "--json"],
    ["run", "ours:other", "--input", "ns=[1,2]", "--key", "k"],
    ["run", "ours", "--workflow", "flow", "-i", "n=1", "--no-wait"],
    ["run", "shop.afl:shop.Order", "--no-wait"],
    ["run", "shop.afl", "-m", "ours", "-i", "item=tea", "--no-wait"],
    ["run", "wrong.json"],
    ["resume", "ours"],
    ["resume", "empty", "--json"],
    ["check", "ours", "syntax.py", "raises"],
    ["check", "ours", "--json"],
    ["compile", "shop.afl"],
    ["compile", "shop.afl", "-o", "out"],
    ["list", "--limit", "3"],
    ["list", "--workflow", "ours.flow", "--state", "FAILED", "--json"],
    ["show", "a"],
    ["show", "0", "--json"],
    ["db", "upgrade"],
    ["--version"],
    ["--help"],
    ["run", "--help"],
]
WORDS = [
    *("", ".", "..", "...", "/", ":", "::", "-", "--", "-i", "-m", "-h", "=", "@", "%", "*", "\\"),
    *("n=", "=1", "n=1", "n=NaN", "n=-1e999", "n=null", "n=[", "n={}", "text=[/b]", "n=@value.txt"),
    *("n=@", "n=@.", "n=@no.db", "any=1e400", "n=" + "9" * 5_000, "any=" + "[" * 5_000),
    *("[/b]", "[red]", "\x1b[2J", "a\nb", "\r", "\u202e", "\udcff", "☕", "x" * 5_000, "9" * 5_000),
    *("0", "-1", "1e9", "0x10", "9" * 20, "null", "None", "true", "''", '"', "$(id)", "`id`", ";"),
    *(
        "ours",
        "ours:flow",
        "ours:",
        ":flow",
        "ours:nope",
        "ours.py",
        "ours.flow",
        ".ours",
        "./ours",
    ),
    *("ours..flow", "ours.", "syntax", "raises", "empty", "nowhere.py", "folder.json", "deep.json"),
    *("cut.json", "wrong.json", "no.db", "shop.afl:shop.Order", "shop.afl:nope", "shop.ffl"),
    *("run", "resume", "check", "compile", "list", "show", "db", "upgrade", "--json", "--limit"),
    *("--workflow", "--state", "--key", "--module", "--input", "--no-wait", "--nope", "--limit=9"),
    *("--state=running", "--json=1", "--key=", "--version", "--help"),
]
URLS = [
    *("sqlite:///flowengine.db", "sqlite:///other.db", "sqlite://", "sqlite:///no.db"),
    *("sqlite:////nowhere/x.db", "sqlite:///.", "nonsense", "://", "mysql://u:p@h/d"),
    *("postgresql://joe:geheim@127.0.0.1:9/d", "postgresql://h:port/d?password=geheim"),
    *(
        "postgresql+nope://h/d",
        "postgresql://127.0.0.1:9/d?nope=1",
        "\x1b[31m",
        "x" * 5_000,
    ),
]


class Hang(BaseException):
    pass


def line_of(seed: int, number: int) -> tuple[list[str], str]:
    """A valid line with some mutations, and the URL of the database."""
    random = Random(f"{seed}:{number}")
    words = list(random.choice(VALID))
    for _ in range(random.choice((0, 1, 1, 1, 2, 4))):
        # Rarely the command itself: most lines should get to its arguments.
        at = random.randrange(0 if random.random() < 0.1 else 1, max(len(words), 1) + 1)
        match random.randrange(6):
            case 0:
                words.insert(at, random.choice(WORDS))
            case 1 | 2 if at < len(words):
                words[at] = random.choice(WORDS)
            case 3 if at < len(words):
                del words[at]
            case 4 if at < len(words):
                words[at] = mutated(words[at], random)
            case _:
                words.append(random_text(random))
    if any(word.startswith(("-o", "--o")) for word in words):
        # It may write any file of this directory, among them the database of the other lines.
        words = ["compile", "shop.afl", "-o", random.choice(("out", "", ".", "nowhere/x", "/"))]
    url = URLS[0] if random.random() < 0.7 else random.choice(URLS)
    return words, url


def mutated(word: str, random: Random) -> str:
    at = random.randrange(len(word) + 1)
    return random.choice(
        [
            word[:at],
            word[at:],
            word[:at] + random_text(random) + word[at:],
            word * random.choice((2, 50)),
            word.upper(),
        ]
    )


def random_text(random: Random) -> str:
    ranges = ((1, 0x20), (0x20, 0x7F), (0x7F, 0x250), (0x2000, 0x2070))
    return "".join(
        chr(random.randrange(*random.choice(ranges))) for _ in range(random.randrange(9))
    )


def call(words: list[str]) -> tuple[str, str, int | str]:
    """Call the command; return what it prints and its exit code, or the problem."""
    from flowengine.cli import main

    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    code: int | str
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            signal.alarm(_HANG)
            main(words, prog_name="flowengine")
            code = "main returned"
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else f"exit {end.code!r}"
        except BaseException:
            code = traceback.format_exc()
        finally:
            signal.alarm(0)
    return (*(each.buffer.getvalue().decode() for each in (out, err)), code)  # type: ignore[attr-defined]


def problem_of(stdout: str, stderr: str, code: int | str) -> str:
    if code not in (0, 1, 2):
        return f"ended with {code}"
    if code == 2 and not ("Error: " in stderr or stderr.startswith("Usage: ")):
        return f"ended with {code} and no sentence: {stderr}"
    # The traceback of a step is shown on purpose, on the standard output.
    for sign in ("Traceback", "this is unexpected"):
        if sign in stderr:
            return f"printed {sign!r}: {stderr[-3_000:]}"
    for sign in ("geheim@", "=geheim", "\x1b", "\x9b"):
        if sign in stdout + stderr:
            return f"printed {sign!r}: {stdout[-1_000:]} {stderr[-1_000:]}"
    return ""


def _fuzz(directory: str, seed: int, seconds: float, report: Path) -> None:
    """In a process of its own."""
    os.chdir(directory)
    signal.signal(signal.SIGALRM, _raise_hang)
    counts: Counter[str] = Counter()
    slowest, problems, memory = 0.0, [], 0.0
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline and len(problems) < 5:
        words, url = line_of(seed, number)
        os.environ["FLOWENGINE_DATABASE_URL"] = url
        began = time.monotonic()
        stdout, stderr, code = call(words)
        slowest = max(slowest, time.monotonic() - began)
        counts[str(code)[:40]] += 1
        if problem := problem_of(stdout, stderr, code):
            problems.append(f"line {number} of seed {seed}, {words!r} on {url!r}: {problem}")
        number += 1
        if number == 100:
            memory = _megabytes()
    found: dict[str, Any] = {"counts": counts, "slowest": slowest, "problems": problems}
    found["growth"] = _megabytes() - memory if memory else 0
    report.write_text(json.dumps(found))
    os._exit(0)  # the embedded engine has threads with unfinished runs


def _raise_hang(*_: object) -> None:
    raise Hang(f"more than {_HANG} s")


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz(here: Path, seed: int, seconds: float) -> None:
    for name, text in FILES.items():
        (here / name).write_text(text)
    (here / "folder.json").mkdir()
    report = here / "report"
    child = fork_server.context.Process(target=_fuzz, args=(str(here), seed, seconds, report))
    child.start()
    child.join(timeout=seconds + 60)
    assert child.exitcode == 0, f"seed {seed} ended with {child.exitcode}"
    found = json.loads(report.read_text())
    total = sum(found["counts"].values())
    print(f"{total:,} command lines of seed {seed} in {seconds:g} s: {found}")
    assert found["problems"] == []
    assert total >= 10 * seconds, "too few to mean anything"
    assert found["growth"] < _GROWTH


def test_random_command_lines_end_with_a_sentence(tmp_path: Path) -> None:
    fuzz(tmp_path, seed=15, seconds=6)


@pytest.mark.chaos
def test_random_command_lines_end_with_a_sentence_for_minutes(
    tmp_path: Path, chaos_seed: int
) -> None:
    fuzz(tmp_path, seed=chaos_seed, seconds=150)
