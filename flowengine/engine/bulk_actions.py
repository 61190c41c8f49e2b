"""Actions on many runs, chosen by the filters of lists; a dry run counts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Unpack

from flowengine.actors import Actor
from flowengine.engine.control import Control
from flowengine.engine.queries import run_infos
from flowengine.engine.results import RunInfo
from flowengine.engine.retries import Retries
from flowengine.engine.run_filters import RunFilters, chosen, refuse_empty
from flowengine.engine.run_pages import read_all
from flowengine.errors import ActionRefused, UnknownRun
from flowengine.evaluator.actions import RUN_ACTIONS, ActionKind
from flowengine.evaluator.states import RunState
from flowengine.program import Program
from flowengine.settings import Settings
from flowengine.store import Store

_MAX_LISTED = 100  # refusals in a result
_MAX_SHOWN = 10  # runs that a dry run shows

#: The states of the runs that an action is for, if none is given: by default every state that takes
#: it. A retry of all runs leaves those alone that somebody has cancelled.
DEFAULT_STATES: Mapping[ActionKind, tuple[str, ...]] = {ActionKind.RETRY: (RunState.FAILED,)}


class BulkOptions(RunFilters, total=False):
    """The runs that an action is for, and how it is applied.

    Without a filter these are all runs in a state that takes the action. Runs of calls of turns are
    among them only with `agents`: their agents decide about them.
    """

    dry_run: bool
    reason: str
    actor: Actor | str
    action_key: str | None  #: a second action of a run with the same key changes nothing


@dataclass(slots=True)
class BulkResult:
    """How many runs an action was for, and which of them have refused it."""

    kind: ActionKind
    dry_run: bool
    matched: int = 0  #: by the filter
    applied: int = 0
    refused: int = 0  #: of a dry run: that would refuse it
    refusals: dict[str, str] = field(default_factory=dict)  #: the first hundred, by run
    #: Of a dry run: the first ten runs that would take it.
    first: list[RunInfo] = field(default_factory=list)

    @property
    def allowed(self) -> int:
        """How many runs take the action: of a dry run, those that would."""
        return self.matched - self.refused

    def refuse(self, run_id: str, problem: ActionRefused | UnknownRun) -> None:
        self.refused += 1
        if len(self.refusals) < _MAX_LISTED:
            short = problem.reason if isinstance(problem, ActionRefused) else str(problem)
            self.refusals[run_id] = short


class _Act(Protocol):
    """Applies an action to a run, or only raises why the run would refuse it."""

    def __call__(self, run_id: str, about: dict[str, Any], *, dry_run: bool) -> None: ...


class BulkActions:
    def __init__(
        self, database: Store, control: Control, retries: Retries, settings: Settings
    ) -> None:
        self._database, self._control, self._retries = database, control, retries
        self._tenant = settings.tenant

    def act_on_all(self, kind: ActionKind, **options: Unpack[BulkOptions]) -> BulkResult:
        """Apply an action to each run that the filter matches, in the order of their start.

        With `dry_run` nothing is changed, and `allowed` says how many would take it. A run that
        takes it no longer, because it has ended in the meantime, is listed with its refusal; the
        others are not held up. Interrupted half way, it can be repeated: an action that was applied
        is not applied again.
        """

        def act(run_id: str, about: dict[str, Any], *, dry_run: bool) -> None:
            self._control.act(run_id, kind, dry_run=dry_run, **about)

        return self._apply(kind, options, act)

    def cancel_all(self, **options: Unpack[BulkOptions]) -> BulkResult:
        """Cancel the runs that the filter matches; see `act_on_all`."""
        return self.act_on_all(ActionKind.CANCEL, **options)

    def hold_all(self, **options: Unpack[BulkOptions]) -> BulkResult:
        """Hold the runs that the filter matches; see `act_on_all`."""
        return self.act_on_all(ActionKind.HOLD, **options)

    def release_all(self, **options: Unpack[BulkOptions]) -> BulkResult:
        """Release the held runs that the filter matches; see `act_on_all`."""
        return self.act_on_all(ActionKind.RELEASE, **options)

    def retry_all(
        self,
        *,
        from_step: str | None = None,
        program: Program | Mapping[str, Any] | None = None,
        **options: Unpack[BulkOptions],
    ) -> BulkResult:
        """Retry the runs that the filter matches: the failed ones, unless `state` is given.

        Each is retried as by `Retries.retry`. A run that refuses it, because it has no such step
        for example, is listed with its refusal. See `act_on_all`.
        """
        chosen: dict[str, Any] = {"from_step": from_step, "program": program}

        def act(run_id: str, about: dict[str, Any], *, dry_run: bool) -> None:
            if dry_run:
                self._retries.steps_to_run(run_id, **chosen)
            else:
                self._retries.retry(run_id, **chosen, **about)

        return self._apply(ActionKind.RETRY, options, act)

    def _apply(self, kind: ActionKind, options: BulkOptions, act: _Act) -> BulkResult:
        given: dict[str, Any] = dict(options)
        result = BulkResult(kind, given.pop("dry_run", False))
        about: dict[str, Any] = {name: given.pop(name, "") for name in ("reason", "actor")}
        about["key"] = given.pop("action_key", None)
        shown: list[str] = []
        for run_id in self._matching(kind, given):
            result.matched += 1
            try:
                act(run_id, about, dry_run=result.dry_run)
                if result.dry_run and len(shown) < _MAX_SHOWN:
                    shown.append(run_id)
            except (ActionRefused, UnknownRun) as problem:
                result.refuse(run_id, problem)
            else:
                result.applied += not result.dry_run
        if shown:
            with self._database.read() as session:
                result.first = run_infos(session, shown)
        return result

    def _matching(self, kind: ActionKind, filters: Mapping[str, Any]) -> Iterator[str]:
        """Yield the runs that the filters match, the oldest first; none that is started later."""
        refuse_empty(filters)
        with self._database.read() as session:
            wanted, waits_for = chosen(session, self._tenant, filters)
            latest = session.now() + 1
        before = wanted.created_before
        wanted = replace(
            wanted,
            states=wanted.states or default_states(kind),
            created_before=latest if before is None else min(before, latest),
            only_listed=not wanted.agents,
            oldest_first=True,
        )
        for ids in read_all(self._database, wanted, waits_for):
            yield from ids


def default_states(kind: ActionKind) -> tuple[str, ...]:
    """Return the states of the runs that an action is for, if none is given."""
    taking = tuple(state for state in RunState.ALL if kind in RUN_ACTIONS[state])
    return DEFAULT_STATES.get(kind, taking)
