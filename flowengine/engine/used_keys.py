"""Starts with a key that an earlier run has.

A run that has failed keeps its key, unless a start with ``if_failed="start"`` replaces it. The
failed run releases the key in the transaction that inserts the new run, and only if it still has
the key: of two starts at once one inserts a run, and the other one finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from flowengine.authoring import IfFailed
from flowengine.engine.start_request import StartRequest
from flowengine.errors import EarlierRunFailed, InvalidInputs
from flowengine.evaluator.states import RunState
from flowengine.store import Session
from flowengine.store.shown_values import shown_error


class Earlier(NamedTuple):
    """The earlier run of a key."""

    run_id: str
    is_replaced: bool  #: by the run of this start


def key_options(
    workflow: str, count: int, keys: Iterable[str] | None, if_failed: IfFailed
) -> list[dict[str, Any]]:
    """Return the options of several starts: each has a key of its own, or none has one."""
    if keys is None:
        if if_failed != "return":
            raise InvalidInputs(workflow, ["the option if_failed needs keys, one for each start"])
        return [{}] * count
    given = list(keys)
    if len(given) != count:
        what = f"the keys must be one for each start, and are {len(given)} for {count}"
        raise InvalidInputs(workflow, [what])
    return [{"key": key, "if_failed": if_failed} for key in given]


def earlier_run(
    session: Session, request: StartRequest, *, may_replace: bool = True
) -> Earlier | None:
    """Return the run that has the key; raises EarlierRunFailed if the request demands it.

    Without `may_replace` the state of that run does not matter: another start has inserted it
    at the same moment.
    """
    if request.if_failed != "return" and session.runs.get(request.run_id) is not None:
        # Inserted by an unanswered statement, or by the same message.
        return Earlier(request.run_id, is_replaced=False)
    found = session.run_keys.with_key(request.tenant, request.workflow, request.key or "")
    if found is None:
        return None
    expires = found.key_expires
    if may_replace and expires is not None and expires <= session.now():
        return Earlier(found.id, is_replaced=True)
    has_failed = may_replace and found.state in (RunState.FAILED, RunState.CANCELLED)
    if has_failed and request.if_failed == "raise":
        error = shown_error(found.error, request.workflow) or {}
        path, kind, message = (error.get(name, "") for name in ("path", "type", "message"))
        raise EarlierRunFailed(found.id, path, kind, message, request.key or "")
    return Earlier(found.id, has_failed and request.if_failed == "start")


def release_keys(session: Session, run_ids: Iterable[str], now: int) -> None:
    """Take the keys of failed runs, and expired keys, away, in the caller's transaction."""
    # Lock order: by id. Two starts of several runs could deadlock.
    for run_id in sorted(run_ids):
        session.run_keys.release_key(run_id, now)
