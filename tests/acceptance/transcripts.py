"""Console blocks of a document: their commands, the output they show, and its comparison.

The comparison is of shape: `blanked` replaces everything that differs from one execution to the
next, and `differs` allows what is legitimately free. Both are declared here and nowhere else.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(\w*(?: servers)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Replaced in this order, so that a timestamp is not taken for a time of day.
_BLANKS = [
    (r"\x1b\[[0-9;?]*[A-Za-z]", ""),  # colours and cursor movements
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?", "<timestamp>"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<id>"),
    (r"\b(?:[0-9a-f]{32}|[0-9a-f]{20}|[0-9a-f]{8})\b", "<id>"),
    (r"\b0x[0-9a-f]+", "<address>"),
    (r"\b(?:\d+ (?:h|min) )?\d+(?:\.\d+)? ?(?:ms|s|min|h)\b(?: \(\d+:\d\d:\d\d\))?", "<duration>"),
    (r"(?:,| ) queued <duration>", ""),  # on a busy machine
    (r"\b\d\d:\d\d:\d\d(?:\.\d{3})?\b", "<time of day>"),
    (r"\bpid \d+", "pid <pid>"),
    (r"\bForkPoolWorker-\d+", "ForkPoolWorker-<n>"),
    (r"://(?::\*\*@)?(?=localhost|127\.)", "://"),  # some versions of kombu show that there is none
    (r"\b(?:localhost|127\.0\.0\.1):\d+", "<host>:<port>"),
    (r"\bcelery@[\w.-]+", "celery@<host>"),
    (r"^io@vm +[\w.-]+ ", "io@vm  <host> "),
    (r"\bprocess \d+ on [\w.-]+", "process <pid> on <host>"),
    (r"\bv\d+\.\d+\.\d+\w* \(\w+\)", "<version>"),
    (r"^ +(?=<duration> \S )", ""),  # durations are aligned to the right
    (r"(?<=[\w>.]) {2,}", "  "),  # columns are as wide as their longest entry
    (r" +$", ""),
]
_BLANK = [(re.compile(pattern, re.MULTILINE), blank) for pattern, blank in _BLANKS]

#: `flowengine run` prints a line for each step that ends while it watches: those of parallel
#: steps come in any order, and a step that ended before the watch began has none. A wait that
#: begins and ends between two looks has none either.
_PROGRESS = re.compile(r"<duration> [✓✗↷] | {10}! waits for ")
#: Of what a worker prints at its start a document shows an excerpt.
_EXCERPT = re.compile(r"\bcelery .*\bworker\b|\bkill\b")


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a console block, and the output that the document shows for it."""

    command: str
    shown: str


def blocks(document: Path) -> list[tuple[str, str]]:
    """The kind and the text of each fenced block."""
    return [(found[1], found[2]) for found in _BLOCK.finditer(document.read_text())]


def without_blocks(document: Path) -> str:
    return _BLOCK.sub("", document.read_text())


def steps(text: str) -> list[Step]:
    """The commands of a console block: each begins with `$ `, its output follows."""
    commands = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    pairs = [command.partition("\n") for command in commands]
    return [Step(command, shown) for command, _, shown in pairs]


def blanked(output: str) -> list[str]:
    """The lines of an output without anything that differs between two executions."""
    for pattern, blank in _BLANK:
        output = pattern.sub(blank, output)
    return output.strip("\n").splitlines()


def difference(step: Step, actual: str) -> str:
    """How the actual output differs in shape from the output shown; empty if it does not."""
    shown, real = blanked(step.shown), blanked(actual)
    if not shown or _matches(step.command, shown, real):
        return ""
    lines = difflib.unified_diff(shown, real, "the document", "the command", lineterm="")
    return "\n".join((f"$ {step.command}", *lines))


def _matches(command: str, shown: list[str], real: list[str]) -> bool:
    if _EXCERPT.search(command):
        rest = iter(real)
        return all(line in rest for line in shown)
    progress = [line for line in shown if _PROGRESS.match(line)]
    reported = [line for line in real if _PROGRESS.match(line)]
    others = [line for line in shown if not _PROGRESS.match(line)]
    return others == [line for line in real if not _PROGRESS.match(line)] and (
        set(reported) <= set(progress) and bool(reported) == bool(progress)
    )
