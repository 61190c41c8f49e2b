"""The feed of all runs: their commits, numbered without gaps in an order that never changes.

A commit leaves a mark. Readers number the marked commits, one reader at a time: so a commit gets
its number when it can be seen, and a transaction that ends late gets a later number. A number that
was taken in the transaction itself could become visible after a higher one, and readers would miss
it. Commits without a mark, of a process without the setting, are numbered with the next commit of
their run that has one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part

_MOST = 500  #: marks that one transaction numbers
_IS_MARKED = "SELECT 1 FROM flowengine_unnumbered LIMIT 1"
_IS_USED = (
    "SELECT 1 FROM flowengine_counter WHERE name = 'feed' "
    f"UNION ALL SELECT 1 FROM ({_IS_MARKED}) m LIMIT 1"
)
_CREATE = (
    "INSERT INTO flowengine_counter (name, value) VALUES ('feed', 0) "
    "ON CONFLICT DO NOTHING RETURNING 1"
)
_LOCK = "SELECT value FROM flowengine_counter WHERE name = 'feed'{LOCK}"
_RAISE = "UPDATE flowengine_counter SET value = %s WHERE name = 'feed' RETURNING 1"
_MARKED = "SELECT run_id FROM flowengine_unnumbered ORDER BY created LIMIT %s"
# In the order of their times, and those of a run in that of their revisions whatever its clocks.
_NUMBER = (
    "INSERT INTO flowengine_feed (position, run_id, revision, tenant) "
    "SELECT %s + row_number() OVER (ORDER BY c.at, c.run_id, c.revision), c.run_id, c.revision, "
    "c.tenant FROM (SELECT h.run_id, h.revision, r.tenant, "
    "max(h.at) OVER (PARTITION BY h.run_id ORDER BY h.revision) AS at "
    "FROM {IDS} {JOIN} flowengine_run r ON r.id = w.value "
    "{JOIN} flowengine_history h ON h.run_id = r.id WHERE h.revision > COALESCE((SELECT "
    "max(f.revision) FROM flowengine_feed f WHERE f.run_id = r.id), 0)) c RETURNING 1"
)
_UNMARK = (
    "DELETE FROM flowengine_unnumbered WHERE run_id IN (SELECT w.value FROM {IDS}) "
    "AND revision <= COALESCE((SELECT max(f.revision) FROM flowengine_feed f "
    "WHERE f.run_id = flowengine_unnumbered.run_id), flowengine_unnumbered.revision) RETURNING 1"
)
_PAGE = (
    "SELECT f.position, h.run_id, h.revision, h.at, h.summary FROM flowengine_feed f "
    "JOIN flowengine_history h ON h.run_id = f.run_id AND h.revision = f.revision "
    "WHERE f.position >= %s{} ORDER BY f.position LIMIT %s"
)
_OF_TENANT = " AND f.tenant = %s"
_OF_RUN = (
    "SELECT revision, run_id, revision, at, summary FROM flowengine_history "
    "WHERE run_id = %s AND revision >= %s ORDER BY revision LIMIT %s"
)
_STEP = "s.run_id, s.id, s.key, s.generation, s.path, s.facet_name"
_STEPS_BY_KEY = (
    f"SELECT {_STEP} FROM {{PAIRS}} {{JOIN}} flowengine_step s "
    "ON s.run_id = {PAIR_RUN} AND s.key = {PAIR_KEY}"
)
_STEPS_BY_ID = f"SELECT {_STEP} FROM {{IDS}} {{JOIN}} flowengine_step s ON s.id = w.value"
_EVENTS = (
    "SELECT e.step_id, e.id, e.event_type FROM {PAIRS} {JOIN} flowengine_event e "
    "ON e.run_id = {PAIR_RUN} AND e.id = {PAIR_KEY}"
)
_TRIES = (
    "SELECT t.uuid, t.step_id, t.try_number, t.losses, t.created, t.started, t.outcome, "
    "t.limits IS NOT NULL FROM {PAIRS} {JOIN} flowengine_task t "
    "ON t.run_id = {PAIR_RUN} AND t.step_id = {PAIR_KEY} ORDER BY t.position"
)


class FeedEntry(NamedTuple):
    """A commit, with its place: in the feed of all runs, or among those of its run."""

    position: int
    run_id: str
    revision: int
    at: int
    summary: str


class FeedStep(NamedTuple):
    run_id: str
    id: str
    key: str
    generation: int
    path: str
    facet_name: str


class FeedTry(NamedTuple):
    uuid: str
    step_id: str
    number: int
    losses: int
    created: int
    started: int | None
    outcome: str | None
    has_limits: bool


class Feed(Part):
    # --- commits ---

    def is_marked(self) -> bool:
        """Whether a commit is to be numbered."""
        return bool(self._session.rows(_IS_MARKED))

    def is_used(self) -> bool:
        """Whether commits were numbered, or are to be."""
        return bool(self._session.rows(_IS_USED))

    def lock(self) -> int:
        """Keep others from numbering commits until this transaction ends; return the last number.

        The first caller inserts the counter, and others wait until it is committed.
        """
        rows = self._session.rows(self._text(_LOCK))
        if not rows:
            self._session.rows(_CREATE)
            rows = self._session.rows(self._text(_LOCK))
        return int(rows[0][0])

    def number(self) -> None:
        """Number some of the marked commits, those with the oldest marks. In a transaction."""
        last = self.lock()
        marks = self._session.rows(_MARKED, (_MOST,))
        if not marks:
            return
        runs = json.dumps(sorted({run_id for (run_id,) in marks}))
        numbered = self._session.rows(self._text(_NUMBER), (last, runs))
        self._session.rows(_RAISE, (last + len(numbered),))
        self._session.rows(self._text(_UNMARK), (runs,))

    def page(self, first: int, tenant: str | None, limit: int) -> list[FeedEntry]:
        """Return numbered commits from `first` on, with `tenant` those of its runs."""
        of_tenant = () if tenant is None else (tenant,)
        text = _PAGE.format("" if tenant is None else _OF_TENANT)
        return [FeedEntry(*row) for row in self._session.rows(text, (first, *of_tenant, limit))]

    def of_run(self, run_id: str, first: int, limit: int) -> list[FeedEntry]:
        """Return the commits of a run from a revision on."""
        return [FeedEntry(*row) for row in self._session.rows(_OF_RUN, (run_id, first, limit))]

    # --- the rows that commits name ---

    def steps(self, keys: Iterable[tuple[str, str]], ids: Iterable[str]) -> list[FeedStep]:
        """Return the steps with these keys, of all generations, and those with these ids."""
        rows = self._session.rows(self._text(_STEPS_BY_KEY), (_pairs(keys),))
        if listed := sorted(ids):
            rows += self._session.rows(self._text(_STEPS_BY_ID), (json.dumps(listed),))
        return [FeedStep(*row) for row in rows]

    def events(self, ids: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
        """Return by step the id and the type of its event; ids are those of runs and events."""
        rows = self._session.rows(self._text(_EVENTS), (_pairs(ids),))
        return {step_id: (event_id, event_type) for step_id, event_id, event_type in rows}

    def tries(self, steps: Iterable[tuple[str, str]]) -> list[FeedTry]:
        """Return the tries of these steps, in the order of their creation."""
        rows = self._session.rows(self._text(_TRIES), (_pairs(steps),))
        return [FeedTry(*row) for row in rows]

    def _text(self, template: str) -> str:
        return in_dialect(template, self._session.dialect)


def _pairs(pairs: Iterable[tuple[str, str]]) -> Any:
    return json.dumps([{"run_id": run_id, "key": key} for run_id, key in sorted(pairs)])
