"""The answer that a model is giving, as far as it has come.

For readers who do not want to wait: pieces may be missing, and a lost try begins anew. The card
that the answer becomes is the truth. A draft is the progress of the try, so it needs no row, and a
model that answers quickly costs no statement more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from flowengine.models import Chunk
from flowengine.program.nodes import Json

_INTERVAL = 0.5  #: seconds between two reports, and before the first
_MAX_BYTES = 6_000  #: of the text as JSON; a progress has a limit
_LONGEST = 1_000  #: characters that are kept: the end of the text


@dataclass(frozen=True, slots=True)
class Draft:
    """A part of an answer."""

    chunks: int  #: pieces so far; it grows, and readers see some of its values
    text: str  #: the end of the text so far

    @classmethod
    def of(cls, progress: Json) -> Self | None:
        """Return the draft that a try has reported; None if it has reported none."""
        if not isinstance(progress, dict) or "chunks" not in progress:
            return None
        return cls(int(str(progress["chunks"])), str(progress.get("text", "")))


class DraftWriter:
    """Reports the pieces of one model call, twice a second at most."""

    def __init__(
        self, report: Callable[[Json], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._report, self._clock = report, clock
        self._chunks, self._text = 0, ""
        self._next = clock() + _INTERVAL

    def add(self, chunk: Chunk) -> None:
        self._chunks += 1
        if chunk.kind == "text":
            self._text = (self._text + chunk.text)[-_LONGEST:]
        now = self._clock()
        if now >= self._next:
            self._next = now + _INTERVAL
            self._report({"chunks": self._chunks, "text": _clipped(self._text)})


def _clipped(text: str) -> str:
    """Return the end of a text that fits into a progress: an emoji takes twelve bytes of JSON."""
    while len(json.dumps(text)) > _MAX_BYTES:
        text = text[len(text) // 2 :]
    return text
