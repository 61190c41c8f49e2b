"""Rounds: the calls of a facet that calls itself, as a flat list.

A loop by recursion nests each round in the one before. Drawn as it is nested, the third round is
far to the right and the hundredth is not readable. So if each call makes at most one further call,
terminal and pages list the calls below the outermost one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from flowengine.evaluator.states import ObjectType, StepState


class TreeRow(Protocol):
    """A row of a run's tree."""

    @property
    def key(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def object_type(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def created(self) -> int: ...
    @property
    def updated(self) -> int: ...


T = TypeVar("T", bound=TreeRow)
Children = Mapping[str | None, Sequence[T]]  #: rows by the key of their parent, in program order


@dataclass(frozen=True, slots=True)
class Round(Generic[T]):
    number: int
    step: T
    failed_in: int | None  #: the number of the round that made it fail
    #: Milliseconds that it took without the rounds inside it; None: it has not ended.
    own_time: int | None

    @property
    def name(self) -> str:
        return f"round {self.number:,}"


class Rounds(Generic[T]):
    """The loops of a run."""

    def __init__(self, children: Children[T], facet: Callable[[T], str]) -> None:
        self._children = children
        self._next: dict[str, T] = {}  #: the next round, by the key of a round
        self._elsewhere: set[str] = set()  #: keys of rows that are not drawn where they are nested
        self._leading: set[str] = set()  #: keys of rows between a round and the next one
        self._bodies: set[str] = set()  #: keys of the calls that execute the body of their facet
        calls = self._calls(facet)
        rows = {row.key: row for rows in children.values() for row in rows} if calls else {}
        for key, inner in calls.items():
            if len(inner) == 1:
                self._next[key] = inner[0]
                self._elsewhere.add(inner[0].key)
                self._leave_out_leading(inner[0], rows[key], rows)

    def of(self, step: T, first: int, last: int) -> list[Round[T] | Sequence[Round[T]]]:
        """Return the rounds of the loop that begins with a step; empty if none does.

        Of many rounds the first, the last and the failed ones are to be shown; the others stand in
        sequences between them.
        """
        if step.key in self._elsewhere or step.key not in self._next:
            return []
        steps = [step]
        while (following := self._next.get(steps[-1].key)) is not None:
            steps.append(following)
        shown: list[Round[T] | Sequence[Round[T]]] = []
        hidden: list[Round[T]] = []
        for one in self._rounds(steps):
            is_near_an_end = one.number <= first or one.number > len(steps) - last
            if is_near_an_end or one.failed_in == one.number:
                shown += [hidden, one] if hidden else [one]
                hidden = []
            else:
                hidden.append(one)
        return shown

    def _rounds(self, steps: Sequence[T]) -> list[Round[T]]:
        found: list[Round[T]] = []
        failed_in = None
        for number, step in reversed(list(enumerate(steps, 1))):
            # A round that was skipped, because a step of the round around it failed, is no cause.
            failed_in = (failed_in or number) if step.state == StepState.ERROR else None
            own_time = self._own_time(step, self._next.get(step.key))
            found.append(Round(number, step, failed_in, own_time))
        return found[::-1]

    def _own_time(self, step: T, following: T | None) -> int | None:
        """Return the time of a round before the next one began, and after that one ended."""
        if following is None:
            return step.updated - self._begun(step) if step.state in StepState.FINAL else None
        ends = [row.updated for row in self._own(step)]
        is_over = following.state in StepState.FINAL
        later = [end for end in ends if is_over and end >= following.updated]
        earlier = [end for end in ends if end not in later]
        after = max(later) - following.updated if later else 0
        return max([self._begun(following), *earlier]) - self._begun(step) + after

    def _begun(self, step: T) -> int:
        """Return when a call began: its row is created before, with all steps of its block."""
        return min((row.created for row in self._below(step.key)), default=step.created)

    def is_elsewhere(self, row: T) -> bool:
        """Whether a row is a round in a list further out, or a case beside the way to one."""
        return row.key in self._elsewhere

    def is_frame(self, row: T) -> bool:
        """Whether only the rows below it are shown: a block, or a branch to the next round."""
        return row.object_type in ObjectType.FRAMES or row.key in self._leading

    def _calls(self, facet: Callable[[T], str]) -> dict[str, list[T]]:
        """Return for each call of a facet, by its key, the nearest calls of that facet inside it.

        A call inside a later round belongs to that round: of facets that call each other in turn,
        the calls of the outermost are the rounds.
        """
        calls: defaultdict[str, list[T]] = defaultdict(list)
        around: defaultdict[str, list[tuple[int, T]]] = defaultdict(list)  # open calls of a facet
        depth, limits = 0, [0]  # the depths of the open calls, and of the open rounds
        pending: list[tuple[T, str]] = [(row, "enter") for row in reversed(self._below(None))]
        # Iterative: rounds may be nested deeper than Python's stack.
        while pending:
            row, what = pending.pop()
            name = "" if row.object_type in ObjectType.BLOCKS else facet(row)
            if what != "enter":
                around[name].pop()
                depth -= 1
                if what == "leave round":
                    limits.pop()
                continue
            is_round = bool(name and around[name]) and around[name][-1][0] >= limits[-1]
            if is_round:
                calls[around[name][-1][1].key].append(row)
            below = self._below(row.key)
            # A statement with a body of its own does not execute the body of its facet.
            if name and any(child.address.partition("/")[0] == name for child in below):
                self._bodies.add(row.key)
                depth += 1
                around[name].append((depth, row))
                if is_round:
                    limits.append(depth)
                pending.append((row, "leave round" if is_round else "leave"))
            pending += [(child, "enter") for child in reversed(below)]
        return calls

    def _leave_out_leading(self, inner: T, outer: T, rows: Mapping[str, T]) -> None:
        """Leave out the branches between two rounds, and their cases that were not taken."""
        row = inner
        while row.parent is not None and row.parent != outer.key:
            row = rows[row.parent]
            if row.key in self._bodies:
                return
            self._leading.add(row.key)
            not_taken = [child for child in self._below(row.key) if _is_not_taken(child)]
            self._elsewhere.update(child.key for child in not_taken)

    def _own(self, step: T) -> Iterator[T]:
        """Yield the steps, items and cases directly below a round."""
        pending = [*self._below(step.key)]
        while pending:
            row = pending.pop()
            if self.is_frame(row):
                pending += self._below(row.key)
            elif not self.is_elsewhere(row):
                yield row

    def _below(self, key: str | None) -> Sequence[T]:
        return self._children.get(key, ())


def _is_not_taken(row: TreeRow) -> bool:
    return row.object_type == ObjectType.CASE and row.state == StepState.SKIPPED
