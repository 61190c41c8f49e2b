"""Steps: read queries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flowengine.evaluator import Step
from flowengine.evaluator.outline import OutlineRow
from flowengine.evaluator.states import ObjectType, StepState
from flowengine.store.backend import in_dialect
from flowengine.store.parts import Part, quoted, statement
from flowengine.store.records import STEP_COLUMNS, step_from
from flowengine.store.shown_values import shown_step

Decode = Callable[[Sequence[Any]], Step]


class StepPlace(NamedTuple):
    """The place of a step in the order of creation."""

    created: int = -1
    position: int = -1
    id: str = ""


class TreeStep(NamedTuple):
    """A step with a few short columns: its place in the tree of its run."""

    id: str
    key: str
    parent: str | None
    position: int
    object_type: str
    state: str
    item_count: int
    facet_name: str
    address: str
    created: int
    updated: int


class StepDetails(NamedTuple):
    """Name, error and times of a step, without its values."""

    id: str
    path: str
    facet_name: str
    state: str
    error: str | None
    created: int
    updated: int
    activation: int


_COLUMNS = ", ".join(STEP_COLUMNS)
_BY_ID = statement(f"SELECT {_COLUMNS} FROM flowengine_step WHERE id = :step")
_OF_RUN = statement(
    f"SELECT {_COLUMNS} FROM flowengine_step WHERE run_id = :run AND NOT superseded "
    f"AND object_type <> '{ObjectType.MAILBOX}' "
    "ORDER BY created, position"
)
# The database sorts the rows of the run for each page: an index in this order would cost every
# step. New steps are behind all others, so no page misses them.
_PAGE = (
    f"SELECT {_COLUMNS} FROM flowengine_step WHERE run_id = %s AND NOT superseded "
    f"AND object_type <> '{ObjectType.MAILBOX}' AND (created, position, id) > (%s, %s, %s) "
    "ORDER BY created, position, id LIMIT %s"
)
#: Correlated, because a limit is for each run: one run of many steps must not stop a page.
_COUNTED = (
    "(SELECT s.state FROM flowengine_step s WHERE s.run_id = w.value AND NOT s.superseded "
    f"AND s.object_type IN ({quoted(ObjectType.STEPS)}) LIMIT %s) AS c"
)
_PROGRESS = (
    f"SELECT w.value, (SELECT count(*) FROM {_COUNTED}), (SELECT count(*) FROM {_COUNTED} "
    f"WHERE c.state IN ({quoted(StepState.FINAL)})) FROM {{IDS}}"
)
_IN_WIDE = (
    "FROM flowengine_step s LEFT JOIN flowengine_step p "
    "ON p.run_id = s.run_id AND p.key = s.parent AND NOT p.superseded "
    "AND p.object_type = :foreach AND p.item_count > :wide "
    f"WHERE s.run_id = :run AND NOT s.superseded AND s.object_type <> '{ObjectType.MAILBOX}'"
)
# Parents first, so that a limit cuts off the deepest rows: a row's path begins with its parent's.
_SKELETON = statement(
    f"SELECT {', '.join(f's.{name}' for name in TreeStep._fields)} "
    f"{_IN_WIDE} AND (p.key IS NULL OR s.position < :first OR s.state IN :shown) "
    "ORDER BY length(s.path), s.position, s.id LIMIT :most",
    "shown",
)
_ITEM_COUNTS = statement(
    f"SELECT s.parent, s.state, count(*) AS items {_IN_WIDE} AND p.key IS NOT NULL "
    "GROUP BY s.parent, s.state"
)
_DETAILS = statement(
    f"SELECT {', '.join(StepDetails._fields)} FROM flowengine_step WHERE id IN :ids",
    "ids",
)
_BY_KEYS = (
    f"SELECT {', '.join(f's.{name}' for name in STEP_COLUMNS)} FROM {{PAIRS}} "
    "{JOIN} flowengine_step s ON s.run_id = {PAIR_RUN} AND s.key = {PAIR_KEY} "
    "WHERE NOT s.superseded"
)
_AT_EVENT = (
    f"SELECT {_COLUMNS} FROM flowengine_step WHERE run_id = %s AND key > %s "
    f"AND state = '{StepState.EVENT_TRANSMIT}' AND NOT superseded ORDER BY key LIMIT %s"
)
_OUTLINE = (
    f"SELECT {', '.join(OutlineRow._fields)} FROM flowengine_step "
    f"WHERE run_id = %s AND NOT superseded AND object_type <> '{ObjectType.MAILBOX}'"
)


class Steps(Part):
    """Reads steps."""

    def load(
        self, wanted: Mapping[str, Iterable[str]], *, decode: Decode = step_from
    ) -> dict[str, dict[str, Step]]:
        """Return the steps with these keys by run, without those that a run does not have.

        `decode` is `shown_step` for readers, who get placeholders of what cannot be read.
        """
        found: dict[str, dict[str, Step]] = {run_id: {} for run_id in wanted}
        pairs = [{"run_id": run_id, "key": key} for run_id, keys in wanted.items() for key in keys]
        text = in_dialect(_BY_KEYS, self._session.dialect)
        for row in self._session.rows(text, (json.dumps(pairs),)):
            step = decode(row)
            found[step.run_id][step.key] = step
        return found

    def at_event(self, run_id: str, after: str, limit: int) -> list[Step]:
        """Return the next steps of a run that wait at their event, in the order of their keys.

        The pages together read the rows of the run once: an index of the waiting steps would cost
        every run, at every step.
        """
        return [step_from(row) for row in self._session.rows(_AT_EVENT, (run_id, after, limit))]

    def outline(self, run_id: str) -> list[OutlineRow]:
        """Return all rows of a run without their values."""
        return [OutlineRow(*row) for row in self._session.rows(_OUTLINE, (run_id,))]

    def by_id(self, step_id: str) -> Step | None:
        row = self._session.execute(_BY_ID, {"step": step_id}).one_or_none()
        return step_from(row) if row else None

    def of_run(self, run_id: str) -> list[Step]:
        """Return all steps of a run for a reader, in the order of their creation."""
        return [shown_step(row) for row in self._session.execute(_OF_RUN, {"run": run_id})]

    def page(self, run_id: str, after: StepPlace, limit: int) -> list[Step]:
        """Return steps of a run behind a place for a reader, in the order of their creation."""
        return [shown_step(row) for row in self._session.rows(_PAGE, (run_id, *after, limit))]

    def progress(self, run_ids: Sequence[str], most: int) -> dict[str, tuple[int, int]]:
        """Return for each run how many of its steps have ended, and how many it has so far.

        Up to `most` steps of a run are counted.
        """
        text = in_dialect(_PROGRESS, self._session.dialect)
        rows = self._session.rows(text, (most, most, json.dumps(list(run_ids))))
        return {run_id: (ended, steps) for run_id, steps, ended in rows}

    def skeleton(
        self, run_id: str, *, wide: int, first: int, shown: Iterable[str], most: int
    ) -> list[TreeStep]:
        """Return up to `most` rows of a run with a few short columns: the shape of its tree.

        Of a foreach of more than `wide` items only the first items and those in the states
        `shown` are returned.
        """
        values = {"run": run_id, "wide": wide, "first": first, "shown": sorted(shown), "most": most}
        values["foreach"] = ObjectType.FAN
        return [TreeStep(*row) for row in self._session.execute(_SKELETON, values)]

    def item_counts(self, run_id: str, *, wide: int) -> dict[str, dict[str, int]]:
        """Return how many items each foreach of more than `wide` items has, by state."""
        values = {"run": run_id, "wide": wide, "foreach": ObjectType.FAN}
        found: dict[str, dict[str, int]] = {}
        for row in self._session.execute(_ITEM_COUNTS, values):
            found.setdefault(row.parent, {})[row.state] = row.items
        return found

    def details(self, step_ids: Sequence[str]) -> dict[str, StepDetails]:
        """Return names, errors and times of these steps, without their values."""
        return {row.id: StepDetails(*row) for row in self._in_portions(_DETAILS, step_ids)}
