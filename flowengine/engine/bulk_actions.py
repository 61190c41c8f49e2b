"""Actions on many runs, chosen by a filter; a dry run counts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from flowengine.actors import Actor
from flowengine.engine.control import Control
from flowengine.errors import ActionRefused, InvalidFilter, UnknownRun
from flowengine.evaluator.actions import RUN_ACTIONS, ActionKind
from flowengine.evaluator.states import RunState
from flowengine.settings import Settings
from flowengine.store import Store, codec

_PAGE = 500  # runs that are read together; each is acted on in a transaction of its own
_MAX_LISTED = 100  # refusals in a result


@dataclass(frozen=True, slots=True)
class RunFilter:
    """The runs that an action is for: all conditions hold."""

    workflow: str | None = None  #: its qualified or short name
    state: str | None = None  #: None: every state in which a run takes the action
    labels: Mapping[str, str] = field(default_factory=dict)  #: a run has all of them
    older_than: timedelta | None = None  #: since its start


@dataclass(slots=True)
class BulkResult:
    """How many runs an action was for, and which of them have refused it."""

    kind: ActionKind
    dry_run: bool
    matched: int = 0
    applied: int = 0
    refused: int = 0
    refusals: dict[str, str] = field(default_factory=dict)  #: the first hundred, by run


class BulkActions:
    def __init__(self, database: Store, control: Control, settings: Settings) -> None:
        self._database, self._control, self._tenant = database, control, settings.tenant

    def act_on_all(
        self,
        kind: ActionKind,
        *,
        workflow: str | None = None,
        state: str | None = None,
        labels: Mapping[str, str] | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> BulkResult:
        """Apply an action to each run that the filter matches, in the order of their start.

        With `dry_run` they are only counted. A run that takes the action no longer, because it has
        ended in the meantime, is listed with its refusal; the others are not held up. Interrupted
        half way, it can be repeated: an action that was applied is not applied again.
        """
        chosen = RunFilter(workflow, state, labels or {}, older_than)
        result = BulkResult(kind, dry_run)
        for run_id in self._matching(kind, chosen):
            result.matched += 1
            if dry_run:
                continue
            try:
                self._control.act(run_id, kind, actor=actor, reason=reason, key=key)
            except (ActionRefused, UnknownRun) as problem:
                result.refused += 1
                if len(result.refusals) < _MAX_LISTED:
                    short = problem.reason if isinstance(problem, ActionRefused) else str(problem)
                    result.refusals[run_id] = short
            else:
                result.applied += 1
        return result

    def _matching(self, kind: ActionKind, chosen: RunFilter) -> Iterator[str]:
        if chosen.state is not None and chosen.state not in RunState.ALL:
            raise InvalidFilter(f"no run has the state {chosen.state!r}: {', '.join(RunState.ALL)}")
        if chosen.older_than is not None and chosen.older_than < timedelta():
            raise InvalidFilter("older_than is negative: give the age that a run has at least")
        states = [state for state in RunState.ALL if kind in RUN_ACTIONS[state]]
        with self._database.read() as session:
            now = session.now()
        before = now + 1
        if chosen.older_than is not None:
            before = now - round(chosen.older_than / timedelta(milliseconds=1))
        for state in [chosen.state] if chosen.state else states:
            after = (0, "")
            while True:
                with self._database.read() as session:
                    page = session.runs.page_in_state(
                        state,
                        workflow=chosen.workflow,
                        tenant=self._tenant or None,
                        before=before,
                        after=after,
                        limit=_PAGE,
                    )
                for run_id, _, stored in page:
                    labels = codec.load(stored) or {}
                    if all(labels.get(name) == value for name, value in chosen.labels.items()):
                        yield run_id
                if len(page) < _PAGE:
                    break
                after = (page[-1][1], page[-1][0])

    # --- by kind ---

    def cancel_all(
        self,
        *,
        workflow: str | None = None,
        state: str | None = None,
        labels: Mapping[str, str] | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        reason: str = "",
        actor: Actor | str = "",
    ) -> BulkResult:
        """Cancel the runs that the filter matches; see `act_on_all`."""
        return self.act_on_all(
            ActionKind.CANCEL,
            workflow=workflow,
            state=state,
            labels=labels,
            older_than=older_than,
            dry_run=dry_run,
            reason=reason,
            actor=actor,
        )

    def hold_all(
        self,
        *,
        workflow: str | None = None,
        state: str | None = None,
        labels: Mapping[str, str] | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        reason: str = "",
        actor: Actor | str = "",
    ) -> BulkResult:
        """Hold the runs that the filter matches; see `act_on_all`."""
        return self.act_on_all(
            ActionKind.HOLD,
            workflow=workflow,
            state=state,
            labels=labels,
            older_than=older_than,
            dry_run=dry_run,
            reason=reason,
            actor=actor,
        )

    def release_all(
        self,
        *,
        workflow: str | None = None,
        state: str | None = None,
        labels: Mapping[str, str] | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        reason: str = "",
        actor: Actor | str = "",
    ) -> BulkResult:
        """Release the held runs that the filter matches; see `act_on_all`."""
        return self.act_on_all(
            ActionKind.RELEASE,
            workflow=workflow,
            state=state,
            labels=labels,
            older_than=older_than,
            dry_run=dry_run,
            reason=reason,
            actor=actor,
        )
