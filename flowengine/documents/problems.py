"""The problems of one document, each with its place: they are collected, and raised together."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

from flowengine.errors import InvalidDocument
from flowengine.errors.documents import DocumentProblem
from flowengine.program.limits import clipped
from flowengine.program.suggestions import Suggestions

MAX_PROBLEMS = 100  #: of one document; the others are counted
_MAX_LISTED = 20  #: names in one problem


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in a text; line and column count from 1."""

    line: int = 1
    column: int = 1


def listed(names: Collection[str]) -> str:
    """Return the first names of a list: each problem of a long document would have all of them."""
    more = f" and {len(names) - _MAX_LISTED:,} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(islice(names, _MAX_LISTED)) + more or "none"


class Problems:
    """Collects the problems of one document."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: dict[tuple[Place, str], None] = {}  # in the order of their discovery
        self._suggestions = Suggestions()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, place: Place, what: str) -> None:
        """Note a problem, once."""
        self._found[place, clipped(what)] = None

    def stop(self, place: Place, what: str) -> NoReturn:
        """Note a problem after which nothing more can be read, and raise all."""
        self.add(place, what)
        raise self.error()

    def near(self, name: str, known: Iterable[str]) -> str:
        """Return a hint at the most similar name, or nothing."""
        return self._suggestions.near(name, known).replace("'", "`")

    def error(self) -> InvalidDocument:
        """Return the error with all problems, in the order of their places."""
        found = sorted(self._found, key=lambda each: each[0])
        listed = [
            DocumentProblem(self._file, place.line, place.column, what)
            for place, what in found[:MAX_PROBLEMS]
        ]
        if more := len(found) - MAX_PROBLEMS:
            last = found[-1][0]
            if more > 0:
                what = f"and {more:,} more problems"
                listed.append(DocumentProblem(self._file, last.line, last.column, what))
        return InvalidDocument(listed)

    def check(self) -> None:
        """Raise all problems, if there are any."""
        if self._found:
            raise self.error()
