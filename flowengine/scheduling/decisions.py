"""The decision about a schedule that is due: pure, and told the time.

The ticks that are due come in order. Those within a minute are on time; `catch_up` chooses among
the others. Then `overlap` decides about each tick that is to run. Ticks without a run are told by
their range, so the number of actions is bounded however long nobody looked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from flowengine.scheduling.schedule import Schedule
from flowengine.scheduling.timetable import Timetable

GRACE = 60_000  #: milliseconds after which a tick counts as missed
MAX_RUNS = 100  #: of one decision


class Reason(StrEnum):
    """Why a tick has no run."""

    LATE = "late"  #: missed, and not caught up
    RUNNING = "running"  #: a run of the schedule is open
    WAITING = "waiting"  #: a run of the schedule waits already for the end of another
    REPLACED = "replaced"  #: a later tick was due at the same time
    CLOSED = "closed"  #: the workflow is closed for new starts


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a run for the tick."""

    nominal: int


@dataclass(frozen=True, slots=True)
class Queue:
    """Start a run that begins after the end of the open one."""

    nominal: int


@dataclass(frozen=True, slots=True)
class Replace:
    """Cancel the open run, and start one that begins after its end."""

    nominal: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Start no run for these ticks."""

    nominal: int  #: of the first
    last: int
    count: int | None  #: None: not counted, because there are more than MAX_RUNS
    reason: Reason


Action = Begin | Queue | Replace | Skip


@dataclass(frozen=True, slots=True)
class Decision:
    actions: tuple[Action, ...]
    next_tick: int | None  #: its nominal time; None after the last one
    due: int | None  #: when to look again


def decide(
    timetable: Timetable,
    nominal: int,
    now: int,
    *,
    running: bool,
    waiting: bool,
    closed: bool = False,
) -> Decision:
    """Decide about the tick at `nominal`, and about all after it that are due.

    `running` says whether a run of the schedule is open, `waiting` whether one waits for its end,
    `closed` whether its workflow takes no new starts.
    """
    uncounted, due = _due_ticks(timetable, nominal, now)
    chosen = _CATCH_UP[timetable.schedule.catch_up](timetable, due, now)
    skipped = due[: len(due) - len(chosen)]
    actions: list[Action] = [] if uncounted is None else [uncounted]
    if skipped:
        actions.append(Skip(skipped[0], skipped[-1], len(skipped), Reason.LATE))
    if closed:
        actions += [Skip(tick, tick, 1, Reason.CLOSED) for tick in chosen]
    else:
        actions += _OVERLAP[timetable.schedule.overlap](chosen, running, waiting)
    following = timetable.after(due[-1])
    at = None if following is None else timetable.due_time(following)
    return Decision(tuple(_merged(actions)), following, at)


def decide_trigger(schedule: Schedule, nominal: int, *, running: bool, waiting: bool) -> Action:
    """Decide about a tick that an actor asks for, which is neither early nor late."""
    (action,) = _OVERLAP[schedule.overlap]([nominal], running, waiting)
    return action


def continues(timetable: Timetable, last: int, reason: str | None, skip: Skip) -> bool:
    """Whether skipped ticks follow directly on others, up to `last`, without a run for a reason.

    Not if `last` is no tick of the timetable: the schedule was another one then.
    """
    if reason != skip.reason or timetable.after(last) != skip.nominal:
        return False
    return timetable.after(last - 1) == last


def _due_ticks(timetable: Timetable, nominal: int, now: int) -> tuple[Skip | None, list[int]]:
    """Return the last ticks that are due, and the range of those before them."""
    ticks = [nominal]
    while len(ticks) <= MAX_RUNS:
        following = timetable.after(ticks[-1])
        if following is None or timetable.due_time(following) > now:
            return None, ticks
        ticks.append(following)
    # Too many to visit: a schedule of every second has 31 million in a year.
    last = timetable.before(now - timetable.max_delay + 1, nominal)
    newest = [ticks[-1] if last is None else max(last, ticks[-1])]
    while len(newest) < MAX_RUNS:
        earlier = timetable.before(newest[0], nominal)
        if earlier is None:
            return None, newest
        newest.insert(0, earlier)
    skipped = timetable.before(newest[0], nominal)
    if skipped is None:
        return None, newest
    return Skip(nominal, skipped, None, Reason.LATE), newest


# --- catch_up: which of the due ticks are to run ---


def _on_time(timetable: Timetable, due: Sequence[int], now: int) -> Sequence[int]:
    first = next((i for i, tick in enumerate(due) if now - timetable.due_time(tick) <= GRACE), None)
    return () if first is None else due[first:]


def _on_time_or_last(timetable: Timetable, due: Sequence[int], now: int) -> Sequence[int]:
    return _on_time(timetable, due, now) or due[-1:]


def _all(timetable: Timetable, due: Sequence[int], now: int) -> Sequence[int]:
    return due


_CATCH_UP: Mapping[str, Callable[[Timetable, Sequence[int], int], Sequence[int]]] = {
    "none": _on_time,
    "last": _on_time_or_last,
    "all": _all,
}


# --- overlap: what each tick does that is to run ---


def _allow(ticks: Sequence[int], running: bool, waiting: bool) -> Iterator[Action]:
    yield from map(Begin, ticks)


def _skip(ticks: Sequence[int], running: bool, waiting: bool) -> Iterator[Action]:
    running = running or waiting
    for nominal in ticks:
        if running:
            yield Skip(nominal, nominal, 1, Reason.RUNNING)
        else:
            yield Begin(nominal)
            running = True


def _queue(ticks: Sequence[int], running: bool, waiting: bool) -> Iterator[Action]:
    for nominal in ticks:
        if not (running or waiting):
            yield Begin(nominal)
            running = True
        elif not waiting:
            yield Queue(nominal)
            waiting = True
        else:
            yield Skip(nominal, nominal, 1, Reason.WAITING)


def _replace(ticks: Sequence[int], running: bool, waiting: bool) -> Iterator[Action]:
    for nominal in ticks[:-1]:
        yield Skip(nominal, nominal, 1, Reason.REPLACED)
    for nominal in ticks[-1:]:
        yield Replace(nominal) if running or waiting else Begin(nominal)


_OVERLAP: Mapping[str, Callable[[Sequence[int], bool, bool], Iterator[Action]]] = {
    "allow": _allow,
    "skip": _skip,
    "queue": _queue,
    "replace": _replace,
}


def _merged(actions: Sequence[Action]) -> list[Action]:
    """Join neighbouring ticks that have no run for the same reason."""
    merged: list[Action] = []
    for action in actions:
        before = merged[-1] if merged else None
        if isinstance(action, Skip) and isinstance(before, Skip) and before.reason == action.reason:
            both = (before.count, action.count)
            count = None if None in both else sum(n for n in both if n)
            merged[-1] = replace(before, last=action.last, count=count)
        else:
            merged.append(action)
    return merged
