"""Lists of runs: the ids of a page, by the index of one filter.

A page is read through one index, chosen here and not by the planner, and a limited number of its
entries is looked at: a page costs the same among a thousand runs and a million.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from flowengine.evaluator.states import RunState
from flowengine.store.backend import in_dialect
from flowengine.store.commits import error_label, label_text
from flowengine.store.parts import Part
from flowengine.store.runs import StoredRun
from flowengine.store.tables import (
    RUN_HAS_ALARM,
    RUN_HAS_ERROR,
    RUN_HAS_KEY,
    RUN_HAS_RELEASED_KEY,
    RUN_IS_LISTED,
    RUN_IS_OF_AGENT,
    TASK_IS_RUNNING,
)

ALL_STATES = tuple(RunState.ALL)
OPEN_STATES = tuple(state for state in ALL_STATES if state not in RunState.FINAL)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The conditions of a list; all hold. Times in milliseconds."""

    states: Sequence[str] = ()
    workflows: Sequence[str] | None = None  #: qualified names
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    id_prefix: str = ""
    created_after: int | None = None
    created_before: int | None = None
    finished_after: int | None = None
    finished_before: int | None = None
    error_type: str | None = None  #: of the run, or of an error that was caught or a cause
    boot_ids: Sequence[str] | None = None  #: of servers that run a task of it now
    alarm: bool | None = None
    parent: str | None = None
    tenant: str | None = None
    waits: bool = False  #: only runs that have not ended and wait
    agents: bool = False  #: only runs of calls of turns; a list without other filters omits them
    only_listed: bool = False  #: omits them whatever the other filters
    oldest_first: bool = False


class Place(NamedTuple):
    """The place of a run in a list: newest first, then by id."""

    created: int
    id: str

    @property
    def order(self) -> tuple[int, str]:
        return -self.created, self.id


class Page(NamedTuple):
    ids: list[str]
    last: Place | None  #: the last run that was looked at, if there may be more


@dataclass(frozen=True, slots=True)
class _Branch:
    """One index: where the list is read."""

    condition: str
    values: Mapping[str, Any] = field(default_factory=dict)
    source: str = "flowengine_run r"
    created: str = "r.created"
    id: str = "r.id"
    is_sorted_by_id: bool = False

    def order(self, *, oldest_first: bool) -> str:
        if self.is_sorted_by_id:
            return self.id
        return f"{self.created}{'' if oldest_first else ' DESC'}, {self.id}"


_OF_LABEL = _Branch(
    condition="",
    source="flowengine_label b JOIN flowengine_run r ON r.id = b.run_id",
    created="b.created",
    id="b.run_id",
)
_NO_FILTERS = "1 = 1"
_SCAN = (
    "SELECT {number}, {id}, {created}, CASE WHEN {filters} THEN 1 ELSE 0 END FROM {source} "
    "WHERE {condition}{bounds} ORDER BY {order} LIMIT %(most)s"
)
_LOAD = (
    f"SELECT {', '.join(f'r.{name}' for name in StoredRun._fields)} "
    "FROM {IDS} {JOIN} flowengine_run r ON r.id = w.value"
)
_NAMES = (
    "WITH RECURSIVE found(value) AS (SELECT min(workflow) FROM flowengine_run UNION ALL "
    "SELECT (SELECT min(workflow) FROM flowengine_run WHERE workflow > found.value) FROM found "
    "WHERE found.value IS NOT NULL) SELECT value FROM found WHERE value IS NOT NULL"
)


class RunLists(Part):
    def page(self, wanted: RunFilter, after: Place | None, limit: int, most: int) -> Page:
        """Return up to `limit` runs behind `after`, of up to `most` entries of an index."""
        branches, filters, values = _plan(wanted)
        if filters == _NO_FILTERS:
            most = limit + 1  # one more tells whether there is another page
        is_sorted_by_id = any(branch.is_sorted_by_id for branch in branches)

        def order(place: Place) -> tuple[Any, ...]:
            if is_sorted_by_id:
                return (place.id,)
            return (place.created, place.id) if wanted.oldest_first else place.order

        found: list[tuple[Place, bool]] = []
        horizon: Place | None = None  # behind it, a branch has entries that were not read
        for rows in self._scan(branches, filters, values, wanted, after, most):
            found += [(Place(created, run_id), bool(ok)) for run_id, created, ok in rows]
            if len(rows) == most:
                last = found[-1][0]
                horizon = last if horizon is None else min(horizon, last, key=order)
        ids: list[str] = []
        last_taken: Place | None = None
        for place, matches in sorted(found, key=lambda one: order(one[0])):
            if horizon is not None and order(place) > order(horizon):
                break
            if matches and place.id not in ids[-2:]:
                if len(ids) == limit:
                    return Page(ids, last_taken)
                ids.append(place.id)
            last_taken = place
        return Page(ids, horizon)

    def load(self, ids: Sequence[str]) -> list[StoredRun]:
        """Return these runs in this order, without those that are gone."""
        text = in_dialect(_LOAD, self._session.dialect)
        rows = [StoredRun(*row) for row in self._session.rows(text, (json.dumps(list(ids)),))]
        by_id = {row.id: row for row in rows}
        return [by_id[run_id] for run_id in ids if run_id in by_id]

    def workflow_names(self) -> list[str]:
        """Return the names of all workflows that have runs: a loose index scan."""
        return [row[0] for row in self._session.rows(_NAMES)]

    def _scan(
        self,
        branches: Sequence[_Branch],
        filters: str,
        values: Mapping[str, Any],
        wanted: RunFilter,
        after: Place | None,
        most: int,
    ) -> list[list[tuple[Any, ...]]]:
        """Return id, time and match of the next entries of each branch: one statement."""
        given = {**values, "most": most}
        for name in _BOUNDS:
            if getattr(wanted, name) is not None:
                given[name] = getattr(wanted, name)
        if after is not None:
            given |= {"at": after.created, "behind": after.id}
        texts = []
        for number, branch in enumerate(branches):
            given |= branch.values
            text = _SCAN.format(
                number=number,
                id=branch.id,
                created=branch.created,
                filters=filters,
                source=branch.source,
                condition=branch.condition,
                bounds=_bounds(branch, given, oldest_first=wanted.oldest_first),
                order=branch.order(oldest_first=wanted.oldest_first),
            )
            texts.append(f"SELECT * FROM ({text}) AS branch{number}" if branches[1:] else text)
        found: list[list[tuple[Any, ...]]] = [[] for _ in branches]
        rows = self._session.rows(" UNION ALL ".join(texts), given) if texts else []
        for number, run_id, created, matches in rows:
            found[number].append((run_id, created, matches))
        return found


_BOUNDS = {"created_after": ">=", "created_before": "<"}


def _bounds(branch: _Branch, given: Mapping[str, Any], *, oldest_first: bool) -> str:
    """Return the conditions of time and of the place behind which a page begins."""
    bounds = [
        f"{branch.created} {sign} %({name})s" for name, sign in _BOUNDS.items() if name in given
    ]
    if "at" in given and branch.is_sorted_by_id:
        bounds.append(f"{branch.id} > %(behind)s")
    elif "at" in given:
        sign = ">" if oldest_first else "<"
        # The first condition follows from the second, but can use the index.
        bounds.append(f"{branch.created} {sign}= %(at)s")
        bounds.append(f"({branch.created} {sign} %(at)s OR {branch.id} > %(behind)s)")
    return "".join(f" AND {bound}" for bound in bounds)


def _plan(wanted: RunFilter) -> tuple[list[_Branch], str, dict[str, Any]]:
    """Return the index that a list is read by, and the other conditions with their values."""
    conditions: dict[str, str] = {}
    values: dict[str, Any] = {}

    def add(name: str, condition: str, **given: Any) -> None:
        conditions[name] = condition
        values.update(given)

    def any_of(column: str, name: str, options: Sequence[str]) -> str:
        values.update({f"{name}{n}": option for n, option in enumerate(options)})
        marks = ", ".join(f"%({name}{n})s" for n in range(len(options)))
        return f"{column} IN ({marks})" if options else "1 = 0"

    if wanted.id_prefix:
        bounds = {"first": wanted.id_prefix, "last": wanted.id_prefix + "g"}
        add("id", "r.id >= %(first)s AND r.id < %(last)s", **bounds)
    if wanted.key is not None:
        add("key", "(r.idempotency_key = %(key)s OR r.released_key = %(key)s)", key=wanted.key)
    if wanted.parent is not None:
        add("parent", "r.parent_run_id = %(parent)s", parent=wanted.parent)
    for number, (name, value) in enumerate(sorted(wanted.labels.items())):
        add(
            f"label{number}",
            "EXISTS (SELECT 1 FROM flowengine_label l WHERE l.run_id = r.id "
            f"AND l.name = %(name{number})s AND l.value = %(value{number})s)",
            **{f"name{number}": label_text(name), f"value{number}": label_text(value)},
        )
    if wanted.alarm is not None:
        add("alarm", f"r.{RUN_HAS_ALARM}" if wanted.alarm else "r.alarm IS NULL")
    if wanted.boot_ids is not None:
        running = any_of("t.boot_id", "boot", wanted.boot_ids)
        tasks = f"SELECT t.run_id FROM flowengine_task t WHERE t.{TASK_IS_RUNNING} AND {running}"
        add("server", f"r.id IN ({tasks})")
    if wanted.error_type is not None:
        had = (
            "EXISTS (SELECT 1 FROM flowengine_label e WHERE e.run_id = r.id "
            "AND e.name = %(error_label)s)"
        )
        about = {"error_type": wanted.error_type, "error_label": error_label(wanted.error_type)}
        add("error", f"(r.error_type = %(error_type)s OR {had})", **about)
    if wanted.workflows is not None:
        add("workflow", any_of("r.workflow", "workflow", wanted.workflows))
    if wanted.tenant is not None:
        add("tenant", "r.tenant = %(tenant)s", tenant=wanted.tenant)
    states = list(wanted.states) or list(OPEN_STATES if wanted.waits else ALL_STATES)
    if wanted.states or wanted.waits:
        add("state", any_of("r.state", "state", states))
    for name, sign in (("finished_after", ">="), ("finished_before", "<")):
        if getattr(wanted, name) is not None:
            add(name, f"r.finished {sign} %({name})s", **{name: getattr(wanted, name)})
    if wanted.agents or wanted.only_listed:
        add("agents", f"r.{RUN_IS_OF_AGENT if wanted.agents else RUN_IS_LISTED}")
    branches = _branches(wanted, conditions, states)
    filters = " AND ".join(conditions.values()) or _NO_FILTERS
    return branches, filters, values


def _branches(
    wanted: RunFilter, conditions: dict[str, str], states: Sequence[str]
) -> list[_Branch]:
    """Take the most selective condition that has an index out of the conditions."""
    if "id" in conditions:
        return [_Branch(conditions.pop("id"), is_sorted_by_id=True)]
    if "key" in conditions:
        del conditions["key"]
        return [
            _Branch(f"r.{RUN_HAS_KEY} AND r.idempotency_key = %(key)s"),
            _Branch(f"r.{RUN_HAS_RELEASED_KEY} AND r.released_key = %(key)s"),
        ]
    if "parent" in conditions:
        return [_Branch(conditions.pop("parent"))]
    if "label0" in conditions:
        del conditions["label0"]
        return [replace(_OF_LABEL, condition="b.name = %(name0)s AND b.value = %(value0)s")]
    if "server" in conditions:
        return [_Branch(conditions.pop("server"))]
    if "error" in conditions:
        del conditions["error"]
        return [
            _Branch(f"r.{RUN_HAS_ERROR} AND r.error_type = %(error_type)s"),
            replace(_OF_LABEL, condition="b.name = %(error_label)s AND b.value = ''"),
        ]
    if wanted.alarm:
        return [_Branch(conditions.pop("alarm"))]
    if wanted.workflows is not None:
        del conditions["workflow"]
        return [
            _Branch(f"r.workflow = %(branch{n})s", {f"branch{n}": name})
            for n, name in enumerate(wanted.workflows)
        ]
    is_listed = conditions.pop("agents", f"r.{RUN_IS_LISTED}")
    if "tenant" in conditions:
        return [_Branch(f"{is_listed} AND {conditions.pop('tenant')}")]
    conditions.pop("state", None)
    return [
        _Branch(f"{is_listed} AND r.state = %(branch{n})s", {f"branch{n}": state})
        for n, state in enumerate(states)
    ]
