"""Close workflows for new starts, and open them again: who did it, and why, is kept."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

from flowengine.actors import Actor
from flowengine.engine.control import named_actor
from flowengine.engine.run_filters import is_named
from flowengine.engine.start_request import StartRequest
from flowengine.errors import UnpublishedWorkflow, ValueRefused, WorkflowClosed
from flowengine.program.limits import clipped
from flowengine.store import Session, Store
from flowengine.store.closed_workflows import Closing

_KNOWN = 1_000  # names of the catalogue that are compared


class ClosedWorkflows:
    """Closes and opens the workflows of one database, for all tenants."""

    def __init__(self, database: Store, max_reason: int) -> None:
        self._database, self._max_reason = database, max_reason

    def list(self) -> list[Closing]:
        """Return the closed workflows by name."""
        with self._database.read() as session:
            return session.closed.all()

    def close(self, name: str, *, actor: Actor | str = "", reason: str = "") -> Closing:
        """Refuse new starts of a workflow with WorkflowClosed, until it is opened.

        `name` is its qualified or short name. Open runs go on, with the child runs that they start,
        and are retried; ticks of its schedules are skipped, and say so. Raises UnpublishedWorkflow
        for a name that neither the catalogue nor a run nor a schedule has.
        """
        who, why = named_actor(actor), clipped(reason, self._max_reason)
        with self._database.write() as session:
            workflow = self._resolved(session, name)
            closing = Closing(workflow, who, why, session.now())
            session.closed.close(closing)
            _record(session, "close", workflow, who, why)
        return closing

    def open(self, name: str, *, actor: Actor | str = "", reason: str = "") -> str:
        """Take new starts of a closed workflow again; return its name.

        Raises ValueRefused if it is not closed.
        """
        who, why = named_actor(actor), clipped(reason, self._max_reason)
        with self._database.write() as session:
            closed = [one.workflow for one in session.closed.all()]
            workflow = _one_of(closed, name)
            if workflow is None or not session.closed.open(workflow):
                listed = f"; closed are {', '.join(closed[:10])}" if closed else "; none is"
                raise ValueRefused(f"workflow {clipped(repr(name), 300)} is not closed{listed}")
            _record(session, "open", workflow, who, why)
        return workflow

    def _resolved(self, session: Session, name: str) -> str:
        known = {
            *session.catalogue.names(_KNOWN),
            *session.lists.workflow_names(),
            *session.schedules.workflows(),
        }
        if session.catalogue.get(name) is not None:
            return name
        found = _one_of(known, name)
        if found is None:
            near = get_close_matches(name[:100], known, 1)
            raise UnpublishedWorkflow(name, f"; did you mean {near[0]!r}?" if near else "")
        return found


def _one_of(names: Collection[str], name: str) -> str | None:
    """Return the workflow of that qualified or short name; raises ValueRefused for several."""
    if name in names:
        return name
    found = sorted(one for one in names if is_named(one, name))
    if len(found) > 1:
        raise ValueRefused(f"{name!r} is the short name of several: {', '.join(found)}")
    return found[0] if found else None


def _record(session: Session, action: str, workflow: str, actor: str, reason: str) -> None:
    about: dict[str, Any] = {"actor": actor, "reason": reason, "now": session.now()}
    options = {"workflow": workflow}
    session.actions.add(uuid.uuid4().hex, action, subject=workflow, options=options, **about)


def refuse_closed(session: Session, request: StartRequest) -> None:
    """Raise WorkflowClosed for a start that was not inserted because its workflow is closed."""
    closing = None if request.is_part_of_another else session.closed.get(request.workflow)
    if closing is not None:
        raise WorkflowClosed(closing.workflow, closing.actor, closing.reason)
