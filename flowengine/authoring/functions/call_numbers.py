"""The numbers of a function's calls, compared with its record.

A number is given to each call in the order in which they are made. A call below the length of the
record is compared with it, and is not made again. Values that must not differ between replays
follow from the next number.
"""

from __future__ import annotations

from hashlib import blake2b

from flowengine.errors import Divergence, FunctionMisuse
from flowengine.program.function_calls import DifferentArguments, FunctionRecord, RecordedCall
from flowengine.program.nodes import Location


class CallNumbers:
    """The calls of one activation: how many there are, and what happened since the last one."""

    def __init__(
        self, function: str, step_id: str, record: FunctionRecord, most: int, *, strict: bool
    ) -> None:
        self._function, self._step_id, self._most, self._strict = function, step_id, most, strict
        self._calls = record.calls
        #: Calls whose cancellation is stored, or that have ended: it need not be reported.
        self._closed = {end.number for end in record.ends}
        self._closed |= {at for at, call in enumerate(record.calls) if call.is_cancelled}
        self.next = 0
        self.heard: list[int] = []  #: ends since the last call
        self.warning: DifferentArguments | None = None
        self._changes: list[str] = []  #: since the last call
        self._answers: dict[str, bool] = {}  #: of `changed`, by name
        self._draws: dict[str, int] = {}  #: since the last call, by kind

    def is_new(self, number: int) -> bool:
        """Whether the record lacks a call."""
        return number >= len(self._calls)

    def is_open(self, number: int) -> bool:
        """Whether the record has neither an end nor the cancellation of a call."""
        return number not in self._closed

    def take(self, facet: str, digest: str, line: Location) -> tuple[int, Divergence | None]:
        """Return the number of a call, and how it differs from its record."""
        number = self.next
        is_new = self.is_new(number)
        if is_new and number >= self._most:
            raise FunctionMisuse(
                f"{line}: {self._function} has made {number:,} calls, the limit of one function: "
                "do a part of the work in a workflow of its own, and await that"
            )
        divergence = None
        if not is_new:
            divergence = self._compared(self._calls[number], facet, digest, line)
            self.claim()
        self.next += 1
        self._draws.clear()
        return number, divergence

    def claim(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Return the ends heard, and the changes taken, since the last call; begin anew."""
        heard, self.heard = tuple(self.heard), []
        if not self._changes:
            return heard, ()
        changes, self._changes = tuple(self._changes), []
        return heard, changes

    def _compared(
        self, known: RecordedCall, facet: str, digest: str, line: Location
    ) -> Divergence | None:
        reason = ""
        if known.facet == facet:
            if known.digest != digest:
                different = DifferentArguments(self.next, facet, line)
                self.warning = self.warning or different
                reason = "gives it other arguments"
            elif tuple(self.heard) != known.heard:
                # Harmless: the code waits for less than it did.
                reason = f"makes it after the ends {tuple(self.heard)}, not {known.heard}"
            if not reason or not self._strict:
                return None
        return Divergence(self._function, self.next, known.facet, facet, str(line), reason)

    def missing(self, number: int, line: str) -> Divergence:
        """Return the divergence of code that does not make a recorded call."""
        return Divergence(self._function, number, self._calls[number].facet, "", line)

    def drawn(self, kind: str) -> bytes:
        """Return 16 bytes that follow from the step, the next number, and the draw.

        Draws are counted by kind: a new `random()` does not change a later `uuid()`.
        """
        draw = self._draws[kind] = self._draws.get(kind, 0) + 1
        text = f"{self._step_id}:{self.next}:{kind}:{draw}"
        return blake2b(text.encode(), digest_size=16).digest()

    def changed(self, name: str) -> bool:
        """Whether the function takes a new part of its code, which the next call records.

        The first answer stands. It is false where the record goes on without it.
        """
        answer = self._answers.get(name)
        if answer is None:
            answer = self.is_new(self.next) or name in self._calls[self.next].changes
            self._answers[name] = answer
            if answer:
                self._changes.append(name)
        return answer
