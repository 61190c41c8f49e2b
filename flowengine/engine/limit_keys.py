"""Limits and rates for people: `engine.limits` and `engine.rates`.

What somebody sets is kept with the key and goes before the number that programs state, whichever
run states it, until it is reset.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

from flowengine.actors import Actor
from flowengine.engine.control import named_actor
from flowengine.engine.filter_values import number_of_rows
from flowengine.errors import ValueRefused
from flowengine.printable import printable
from flowengine.program.limits import clipped
from flowengine.program.option_checks import LONGEST_SECONDS, MAX_COUNT
from flowengine.store import Session, Store
from flowengine.store.limit_keys import Holder, LimitKey

LIMIT, RATE = "limit", "rate"
_COMPARED = 1_000  # names that an unknown one is compared with
_HOLDERS = 100


@dataclass(frozen=True, slots=True)
class LimitInfo:
    """A key of limits or rates. Times in milliseconds since the epoch, periods in seconds."""

    key: str
    number: int  #: tasks that it admits at once; of a rate, in a period
    per: float | None  #: the period of a rate
    used: int  #: slots that are taken; more than `number` after that was lowered
    waiting: int  #: tasks that wait for it
    next_free: int | None  #: of a rate, if its slots are taken: when the next one is free
    code_number: int  #: of the run that was started last: it counts unless somebody has set one
    code_per: float | None
    set_by: str | None  #: the actor who has set the number
    set_reason: str | None
    set_at: int | None
    holders: list[Holder] = field(default_factory=list)  #: the first hundred; of `get` alone


class LimitPage(list[LimitInfo]):
    """Keys by name. `cursor` continues behind them; None: there are no more."""

    cursor: str | None = None


class KeyControl:
    """Reads the limits, or the rates, of one database, and overrides their numbers."""

    def __init__(
        self, database: Store, kind: str, admit: Callable[[str], object], max_reason: int
    ) -> None:
        """`admit` admits the tasks that wait for a key."""
        self._database, self._kind, self._admit = database, kind, admit
        self._max_reason = max_reason

    def list(
        self,
        *,
        waiting: bool = False,
        overridden: bool = False,
        cursor: str | None = None,
        limit: int = 50,
    ) -> LimitPage:
        """Return keys by name; `waiting`: for which tasks wait, `overridden`: that are set."""
        limit = number_of_rows("limit", limit)
        only = "awaited" if waiting else "set" if overridden else ""
        with self._database.read() as session:
            after = "" if cursor is None else self._stored(cursor)
            rows = session.limit_keys.page(self._kind, after, limit + 1, only=only)
            page = LimitPage(self._infos(session, rows[:limit]))
        if len(rows) > limit:
            page.cursor = page[-1].key
        return page

    def get(self, key: str) -> LimitInfo:
        """Return a key with its holders; raises ValueRefused."""
        with self._database.read() as session:
            (info,) = self._infos(session, [self._found(session, key)])
            now = session.now()
            info.holders.extend(session.limit_keys.holders(self._stored(key), now, _HOLDERS))
            return info

    def set(
        self,
        key: str,
        number: int,
        *,
        per: timedelta | float | None = None,
        actor: Actor | str = "",
        reason: str = "",
    ) -> LimitInfo:
        """Set the number of a key in place of that of the code, until `reset`.

        0 admits nothing. Of a rate `per` sets the period, too, in seconds. Tasks that are admitted
        stay so. Raises ValueRefused.
        """
        self._check(number, per)
        seconds = per.total_seconds() if isinstance(per, timedelta) else per
        period = None if seconds is None else max(1, round(seconds * 1000))
        return self._change(key, number, period, actor, reason, "set")

    def reset(self, key: str, *, actor: Actor | str = "", reason: str = "") -> LimitInfo:
        """Let the number of the code count again; raises ValueRefused."""
        return self._change(key, None, None, actor, reason, "reset")

    def _change(
        self,
        key: str,
        number: int | None,
        per: int | None,
        actor: Actor | str,
        reason: str,
        action: str,
    ) -> LimitInfo:
        who, why = named_actor(actor), clipped(reason, self._max_reason)
        stored = self._stored(key)
        with self._database.write() as session:
            self._found(session, key, lock=True)  # the admissions under it wait
            now = session.now()
            session.limit_keys.set(stored, number, per, who, why, now)
            about: dict[str, Any] = {"actor": who, "reason": why, "now": now}
            options: dict[str, Any] = {} if number is None else {"number": number}
            options |= {} if per is None else {"per": per / 1000}
            kind = f"{action} {self._kind}"
            session.actions.add(uuid.uuid4().hex, kind, subject=key, options=options, **about)
        self._admit(stored)
        with self._database.read() as session:
            return self._infos(session, [self._found(session, key)])[0]

    def _check(self, number: object, per: Any) -> None:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_COUNT:
            shown = clipped(repr(number), 100)
            raise ValueRefused(f"{shown} is no number of a {self._kind}: give 0 to {MAX_COUNT:,}")
        if per is None:
            return
        seconds = per.total_seconds() if isinstance(per, timedelta) else per
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if self._kind != RATE:
            raise ValueRefused("a limit has no period: leave `per` out")
        if not is_number or not 0 < seconds <= LONGEST_SECONDS:
            raise ValueRefused(f"{clipped(repr(per), 100)} is no period: give seconds above 0")

    def _stored(self, key: str) -> str:
        return f"{self._kind}:{key}"

    def _found(self, session: Session, key: str, *, lock: bool = False) -> LimitKey:
        found = session.limit_keys.get(self._stored(key), lock=lock)
        if found is None:
            names = session.limit_keys.names(self._kind, _COMPARED)
            near = get_close_matches(key[:200], [name.partition(":")[2] for name in names], 1)
            hint = f"; did you mean {printable(near[0])!r}?" if near else ""
            shown = printable(key, limit=200)
            raise ValueRefused(f"no task has had the {self._kind} {shown!r} so far{hint}")
        return found

    def _infos(self, session: Session, rows: Sequence[LimitKey]) -> Sequence[LimitInfo]:
        names, now = [row.key for row in rows], session.now()
        used, waiting = session.limit_keys.used(names, now), session.limit_keys.waiting(names)
        return [_info(row, used.get(row.key, (0, None)), waiting.get(row.key, 0)) for row in rows]


def _info(row: LimitKey, used: tuple[int, int | None], waiting: int) -> LimitInfo:
    number = row.number if row.set_number is None else row.set_number
    per = row.per if row.set_per is None else row.set_per
    return LimitInfo(
        key=row.key.partition(":")[2],
        number=number,
        per=None if per is None else per / 1000,
        used=used[0],
        waiting=waiting,
        next_free=used[1] if used[0] >= number else None,
        code_number=row.number,
        code_per=None if row.per is None else row.per / 1000,
        set_by=row.set_by,
        set_reason=row.set_reason,
        set_at=row.set_at,
    )
