"""The filters of runs: one definition, for lists and for actions on many runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict

from flowengine.engine.filter_values import age_of
from flowengine.engine.waits_for import WaitKind
from flowengine.errors import InvalidFilter
from flowengine.store import Session
from flowengine.store.run_lists import ALL_STATES, RunFilter
from flowengine.tenants import visible_tenant

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_TIMES = ("created_after", "created_before", "finished_after", "finished_before")


class EndedFilters(TypedDict, total=False):
    """The conditions of ended runs that are to be removed; all hold. None: any run."""

    workflow: str | Sequence[str] | None  #: its qualified name, or the last part of one
    named: str | None  #: the same; if no run's workflow has the name, any part of a name
    state: str | Sequence[str] | None
    tenant: str | None
    label: Mapping[str, str] | None  #: a run has all of them
    key: str | None  #: the idempotency key that it has, or had
    id_prefix: str
    created_after: datetime | int | None  #: a number: of milliseconds since the epoch
    created_before: datetime | int | None
    finished_after: datetime | int | None
    finished_before: datetime | int | None
    newer_than: timedelta | float | None  #: since its start; a number: of seconds
    error_type: str | None  #: of the run, of an error that was caught in it, or of a cause
    agents: bool  #: runs of calls of turns, and no others


class RunFilters(EndedFilters, total=False):
    """The conditions of a list of runs, or of an action on many; all hold. None: any run."""

    older_than: timedelta | float | None  #: since its start; a number: of seconds
    server: str | None  #: that runs a step of it now: its name or id
    alarm: bool | None
    parent: str | None  #: the id of the run that started it
    waits_for: str | None  #: a WaitKind


NAMES = frozenset(RunFilters.__annotations__)
_OF_ENDED = frozenset(EndedFilters.__annotations__)


def chosen(
    session: Session, bound: str, filters: Mapping[str, Any]
) -> tuple[RunFilter, WaitKind | None]:
    """Check filters; return those of the store, and what the runs wait for. Raises InvalidFilter.

    An app that is `bound` to a tenant sees the runs of that tenant alone.
    """
    given = dict(filters)
    if unknown := sorted(given.keys() - NAMES):
        raise InvalidFilter.of(unknown[0], given[unknown[0]], f"one of {', '.join(sorted(NAMES))}")
    kind = _wait_kind(given.pop("waits_for", None))
    tenant = visible_tenant(bound, given.pop("tenant", None))
    states = _listed("state", given.pop("state", None))
    for state in states:
        if state not in ALL_STATES:
            raise InvalidFilter.of("state", state, f"one of {', '.join(ALL_STATES)}")
    times: dict[str, Any] = {name: _time(name, given.pop(name, None)) for name in _TIMES}
    _add_ages(session, times, given.pop("newer_than", None), given.pop("older_than", None))
    prefix = given.pop("id_prefix", "") or ""
    if not isinstance(prefix, str) or set(prefix) - set("0123456789abcdef"):
        raise InvalidFilter.of("id_prefix", prefix, "the first digits of an id: 0-9 and a-f")
    server = given.pop("server", None)
    if not isinstance(given.get("agents", False), bool):
        raise InvalidFilter.of("agents", given["agents"], "True or False")
    wanted = RunFilter(
        states=states,
        workflows=_workflows(session, given.pop("workflow", None), given.pop("named", None)),
        labels=_labels(given.pop("label", None)),
        id_prefix=prefix,
        boot_ids=None if server is None else _boots(session, server),
        tenant=tenant,
        waits=kind is not None,
        **times,
        **given,
    )
    return wanted, kind


def ended(
    session: Session, bound: str, states: Sequence[str], before: int, filters: Mapping[str, Any]
) -> list[RunFilter]:
    """Return the filters of the store for runs that ended before that time; together they are all.

    Runs of calls of turns have an index of their own. Raises InvalidFilter.
    """
    for name in sorted(filters.keys() - _OF_ENDED):
        expected = "left out: no ended run that is removed by itself has it"
        raise InvalidFilter.of(name, filters[name], expected)
    wanted, _ = chosen(session, bound, filters)
    at = min([before] if wanted.finished_before is None else [before, wanted.finished_before])
    wanted = replace(wanted, states=states, finished_before=at, oldest_first=True)
    of_agents = replace(wanted, agents=True)
    return [of_agents] if wanted.agents else [replace(wanted, only_listed=True), of_agents]


def refuse_empty(filters: Mapping[str, Any]) -> None:
    """Raise InvalidFilter for a filter that is given and chooses nothing, before an action.

    A list shows any run then; an action on all runs shall not be a variable that nobody has set.
    """
    for name in ("workflow", "named", "id_prefix", "state"):
        value = filters.get(name)
        if value is not None and not value:
            raise InvalidFilter.of(name, value, "not empty: leave it out for any run")


def _wait_kind(given: str | None) -> WaitKind | None:
    try:
        return None if given is None else WaitKind(given)
    except ValueError:
        raise InvalidFilter.of("waits_for", given, f"one of {', '.join(WaitKind)}") from None


def _listed(name: str, value: Any) -> list[str]:
    if value is None or value == "":
        return []
    values = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(one, str) for one in values):
        raise InvalidFilter.of(name, value, "text, or a list of texts")
    return values


def _labels(given: Any) -> dict[str, str]:
    labels = given or {}
    is_text = isinstance(labels, Mapping) and all(
        isinstance(part, str) for item in labels.items() for part in item
    )
    if not is_text:
        raise InvalidFilter.of("label", labels, "a map of text to text")
    return dict(labels)


def _time(name: str, value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, datetime) and value.tzinfo is not None:
        return round((value - _EPOCH) / timedelta(milliseconds=1))
    expected = "a datetime with a time zone, or milliseconds since the epoch"
    raise InvalidFilter.of(name, value, expected)


def _add_ages(session: Session, times: dict[str, Any], newer: Any, older: Any) -> None:
    """Narrow the times of the start by ages."""
    if newer is not None:
        since = session.now() - age_of("newer_than", newer)
        times["created_after"] = max(times["created_after"] or since, since)
    if older is not None:
        until = session.now() - age_of("older_than", older)
        before = times["created_before"]
        times["created_before"] = until if before is None else min(before, until)


def _workflows(session: Session, workflow: Any, named: str | None) -> list[str] | None:
    """Return the qualified names of the workflows of both filters; None: of any."""
    found: list[str] | None = None
    if workflow:
        found = _listed("workflow", workflow)
        if short := [name for name in found if "." not in name]:
            known = session.lists.workflow_names()
            whole = [one for name in short for one in known if is_named(one, name)]
            found = list(dict.fromkeys([name for name in found if name not in short] + whole))
    if named:
        known = session.lists.workflow_names()
        # If there are none: a part of a name.
        of_name = [one for one in known if is_named(one, named)] or [
            one for one in known if named.lower() in one.lower()
        ]
        found = of_name if found is None else [one for one in found if one in of_name]
    return found


def is_named(qualified: str, name: str) -> bool:
    """Whether this is the qualified or the short name of a workflow."""
    return qualified == name or qualified.endswith(f".{name}")


def _boots(session: Session, server: str) -> list[str]:
    found = [
        one.boot_id
        for one in session.servers.alive()
        if server in (one.server_name, one.uuid, one.boot_id)
    ]
    if not found:
        raise InvalidFilter.of("server", server, "the name or id of a server that is registered")
    return found
