"""The lines of many tries in the order of their times, and how many of them are held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from flowengine.engine import merged_lines
from flowengine.engine.log_entries import LogEntry
from flowengine.engine.merged_lines import Portion, TryId, merged


def line(task: str, number: int, at: int) -> LogEntry:
    text = f"{task}{number}"
    return LogEntry("run", "a", "t.A", 1, task, 1, number, at, "INFO", "stdout", "", text)


class Tries:
    """Tries with lines at these times, in chunks of two lines."""

    def __init__(self, **times: list[int]) -> None:
        self.lines = {
            task: [line(task, n, at) for n, at in enumerate(of_try, 1)]
            for task, of_try in times.items()
        }
        self.given = dict.fromkeys(self.lines, 0)
        self.read_again: list[str] = []
        self.loads: list[int] = []

    def load(self, keys: Sequence[TryId]) -> Iterator[Portion]:
        self.loads.append(len(keys))
        for task, lease in keys:
            chunk = self.lines[task][self.given[task] : self.given[task] + 2]
            self.given[task] += len(chunk)
            yield Portion((task, lease), chunk, lambda t=task, c=chunk: self._again(t, c))  # type: ignore[misc]

    def _again(self, task: str, chunk: list[LogEntry]) -> list[LogEntry]:
        self.read_again.append(task)
        return chunk

    def has_more(self, key: TryId) -> bool:
        return self.given[key[0]] < len(self.lines[key[0]])

    def merged(self) -> list[str]:
        keys = [(task, 1) for task in self.lines]
        return [entry.text for entry in merged(keys, self.load, self.has_more)]


def test_lines_of_several_tries_are_in_the_order_of_their_times() -> None:
    tries = Tries(a=[1, 4, 6, 9], b=[2, 3, 5, 7, 8])
    assert tries.merged() == ["a1", "b1", "b2", "a2", "b3", "a3", "b4", "b5", "a4"]
    assert tries.read_again == []


def test_lines_of_one_time_stay_in_the_order_of_their_tries() -> None:
    assert Tries(a=[5, 5], b=[5, 5]).merged() == ["a1", "a2", "b1", "b2"]


def test_a_try_keeps_its_own_order_though_its_clock_went_back() -> None:
    assert Tries(a=[9, 1, 2], b=[3]).merged() == ["b1", "a1", "a2", "a3"]


def test_lines_that_are_needed_last_are_dropped_and_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merged_lines, "HELD_CHARACTERS", 500)  # two chunks of two short lines
    tries = Tries(a=[1, 2], b=[10, 11], c=[20, 21])
    assert tries.merged() == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert tries.read_again == ["b", "c"]


def test_a_dropped_portion_holds_nothing_but_its_first_line() -> None:
    lines = [line("a", n, n) for n in (1, 2, 3)]
    portion = Portion(("a", 1), lines, lambda: lines)
    assert portion.held == 3 * (2 + 100)
    portion.drop()
    assert (portion.held, portion.time, len(portion.entries)) == (0, 1, 1)
    assert [portion.pop().number for _ in range(3)] == [1, 2, 3]


def test_the_first_chunks_of_many_tries_are_read_a_hundred_at_once() -> None:
    tries = Tries(**{f"t{n}": [n] for n in range(250)})
    assert len(tries.merged()) == 250
    assert tries.loads == [100, 100, 50]
