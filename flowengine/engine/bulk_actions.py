"""Actions on many runs, chosen by a filter; a dry run counts them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypedDict, Unpack

from flowengine.actors import Actor
from flowengine.engine.control import Control
from flowengine.engine.filter_values import age_of
from flowengine.engine.retries import Retries
from flowengine.errors import ActionRefused, InvalidFilter, UnknownRun
from flowengine.evaluator.actions import RUN_ACTIONS, ActionKind
from flowengine.evaluator.states import RunState
from flowengine.program import Program
from flowengine.settings import Settings
from flowengine.store import Store, codec

_PAGE = 500  # runs that are read together; each is acted on in a transaction of its own
_MAX_LISTED = 100  # refusals in a result
_RECORDED = ("reason", "actor", "key")  # options of each action


#: The states of the runs that an action is for, if none is given: by default every state that takes
#: it. A retry of all runs leaves those alone that somebody has cancelled.
DEFAULT_STATES: Mapping[ActionKind, tuple[str, ...]] = {ActionKind.RETRY: (RunState.FAILED,)}


class BulkOptions(TypedDict, total=False):
    """The runs that an action is for, all conditions hold; and how it is applied."""

    workflow: str | None  #: its qualified or short name
    state: str | None  #: None: every state in which a run takes the action
    labels: Mapping[str, str] | None  #: a run has all of them
    older_than: timedelta | float | None  #: since its start; a number: of seconds
    dry_run: bool
    reason: str
    actor: Actor | str
    key: str | None


@dataclass(slots=True)
class BulkResult:
    """How many runs an action was for, and which of them have refused it."""

    kind: ActionKind
    dry_run: bool
    matched: int = 0  #: by the filter
    applied: int = 0
    refused: int = 0  #: of a dry run: that would refuse it
    refusals: dict[str, str] = field(default_factory=dict)  #: the first hundred, by run

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
        about = {name: value for name, value in options.items() if name in _RECORDED}
        result = BulkResult(kind, options.get("dry_run", False))
        for run_id in self._matching(kind, options):
            result.matched += 1
            try:
                act(run_id, about, dry_run=result.dry_run)
            except (ActionRefused, UnknownRun) as problem:
                result.refuse(run_id, problem)
            else:
                result.applied += not result.dry_run
        return result

    def _matching(self, kind: ActionKind, options: BulkOptions) -> Iterator[str]:
        state, older_than = options.get("state"), options.get("older_than")
        if state is not None and state not in RunState.ALL:
            raise InvalidFilter(f"no run has the state {state!r}: {', '.join(RunState.ALL)}")
        age = None if older_than is None else age_of("older_than", older_than)
        labels = options.get("labels") or {}
        if not isinstance(labels, Mapping):
            raise InvalidFilter.of("labels", labels, "a map of names and values")
        with self._database.read() as session:
            now = session.now()
        before = now + 1 if age is None else now - age
        for each in [state] if state else default_states(kind):
            after = (0, "")
            while True:
                with self._database.read() as session:
                    page = session.runs.page_in_state(
                        each,
                        workflow=options.get("workflow"),
                        tenant=self._tenant or None,
                        before=before,
                        after=after,
                        limit=_PAGE,
                    )
                for run_id, _, stored in page:
                    own = codec.load(stored) or {}
                    if all(own.get(name) == value for name, value in labels.items()):
                        yield run_id
                if len(page) < _PAGE:
                    break
                after = (page[-1][1], page[-1][0])


def default_states(kind: ActionKind) -> tuple[str, ...]:
    """Return the states of the runs that an action is for, if none is given."""
    taking = tuple(state for state in RunState.ALL if kind in RUN_ACTIONS[state])
    return DEFAULT_STATES.get(kind, taking)
