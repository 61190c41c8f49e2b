"""The same turn for every contender: three model calls, two calls of a tool, then a text.

The model is a function. Each call of it adds a line with its turn, its number and its times, so
that the time between an answer and the next call can be read across processes.
"""

from __future__ import annotations

import os
import time

MODEL_CALLS = 3


def model(turn: str, results: int) -> str | None:
    """Return the text of the last answer; None: call the tool."""
    begins = time.monotonic()
    text = "done" if results >= MODEL_CALLS - 1 else None
    line = f"{turn} {results} {begins!r} {time.monotonic()!r}\n"
    file = os.open(os.environ["BENCH_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)
    return text


def tool(number: int) -> int:
    return number + 1


def gaps(path: str) -> list[float]:
    """Return the seconds between each answer and the next model call of its turn."""
    calls: dict[str, dict[int, tuple[float, float]]] = {}
    with open(path) as file:
        for line in file:
            turn, number, begins, ends = line.split()
            calls.setdefault(turn, {})[int(number)] = float(begins), float(ends)
    return [
        by_number[number + 1][0] - by_number[number][1]
        for by_number in calls.values()
        for number in range(MODEL_CALLS - 1)
    ]
