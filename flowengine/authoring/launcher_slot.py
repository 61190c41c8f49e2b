"""The slot through which ``.start()`` reaches an engine.

This layer knows no database and no broker. The assembly layer fills the slot with a
source of launchers, which is called at each start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from flowengine.actors import Actor
from flowengine.errors import AuthoringError
from flowengine.program.nodes import Json

if TYPE_CHECKING:
    from flowengine.authoring.facets import Workflow
    from flowengine.engine.history import HistoryEntry
    from flowengine.engine.results import RunInfo, StepInfo  # types only: the engine is above
    from flowengine.engine.run_logs import RunLog

R_co = TypeVar("R_co", covariant=True)
#: For a start by a key whose run has failed: start another, return the failed one, or raise.
IfFailed = Literal["return", "start", "raise"]
#: For a start whose singleton key an open run has: raise AlreadyRunning, return that run, cancel it
#: and begin after it, or begin after it and all that are queued.
IfRunning = Literal["reject", "return", "replace", "queue"]

#: For a child run whose parent is cancelled.
OnCancel = Literal["cancel", "leave"]


class RunHandle(Protocol[R_co]):
    """A started run. Each call reads its current state."""

    @property
    def id(self) -> str: ...

    @property
    def state(self) -> str:
        """RUNNING, HELD or CANCELLING; at the end COMPLETED, FAILED or CANCELLED."""
        ...

    def info(self) -> RunInfo:
        """Return the run's current state, its outputs and its error."""
        ...

    def steps(self) -> Sequence[StepInfo]:
        """Return all steps that the run has so far."""
        ...

    def history(self, *, after: int = 0, limit: int = 1_000) -> Sequence[HistoryEntry]:
        """Return the commits of the run behind the revision `after`, in order."""
        ...

    async def ahistory(self, *, after: int = 0, limit: int = 1_000) -> Sequence[HistoryEntry]: ...

    def logs(self, **options: Any) -> RunLog:
        """Return the lines that its steps have printed and logged; options as of `engine.logs`."""
        ...

    def outputs(self, timeout: float | None = None) -> dict[str, Json]:
        """Wait for the run's end and return all outputs by name."""
        ...

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the run's result; raises RunFailed when it fails, RunCancelled if cancelled."""
        ...

    def send(self, name: str, value: Any = None, *, actor: str = "") -> None:
        """Answer the step that waits for `name`, or will; raises AnswerRefused."""
        ...

    async def asend(self, name: str, value: Any = None, *, actor: str = "") -> None: ...

    def answer_link(
        self, name: str, value: Any = ..., *, actor: str = "", valid_for: timedelta = ...
    ) -> str:
        """Return a signed link with which its holder gives this answer to the run, once."""
        ...

    async def aresult(self, timeout: float | None = None) -> R_co:
        """Wait for the run's result without blocking the event loop."""
        ...

    async def aoutputs(self, timeout: float | None = None) -> dict[str, Json]: ...

    async def ainfo(self) -> RunInfo: ...

    async def asteps(self) -> Sequence[StepInfo]: ...

    def cancel(self, *, reason: str = "", actor: Actor | str = "", key: str | None = None) -> None:
        """Cancel the run: its always blocks run, then it is CANCELLED."""
        ...

    def hold(self, *, reason: str = "", actor: Actor | str = "", key: str | None = None) -> None:
        """Keep workers from the run's tasks; those that run may end."""
        ...

    def release(self, *, reason: str = "", actor: Actor | str = "", key: str | None = None) -> None:
        """Let workers claim the tasks of a held run again."""
        ...

    def retry(
        self,
        *,
        from_step: str | None = None,
        program: Any = None,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> None:
        """Run the failed steps again, or `from_step` and every step that depends on it."""
        ...

    def fork(
        self,
        *,
        from_step: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        program: Any = None,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> RunHandle[R_co]:
        """Start a new run that keeps the results of this one, which does not change."""
        ...

    def skip(
        self, step: str, *, reason: str = "", actor: Actor | str = "", key: str | None = None
    ) -> None:
        """End a step that waits or has failed without a result; the run goes on without it."""
        ...

    def complete(
        self,
        step: str,
        result: Any = None,
        *,
        reason: str = "",
        actor: Actor | str = "",
        key: str | None = None,
    ) -> None:
        """Give a step that waits or has failed its result, as if its facet had returned it."""
        ...

    async def aretry(self, **options: Any) -> None: ...

    async def afork(self, **options: Any) -> RunHandle[R_co]: ...

    async def askip(self, step: str, **options: Any) -> None: ...

    async def acomplete(self, step: str, result: Any = None, **options: Any) -> None: ...

    async def acancel(
        self, *, reason: str = "", actor: Actor | str = "", key: str | None = None
    ) -> None: ...

    async def ahold(
        self, *, reason: str = "", actor: Actor | str = "", key: str | None = None
    ) -> None: ...

    async def arelease(
        self, *, reason: str = "", actor: Actor | str = "", key: str | None = None
    ) -> None: ...


@dataclass(frozen=True)
class StartOptions:
    """Options of one start."""

    key: str | None = None  #: idempotency key: a second start with it returns the first run
    priority: int = 0  #: higher is claimed first
    labels: Mapping[str, str] = field(default_factory=dict)
    connection: object | None = None  #: start inside this transaction of the caller
    tenant: str = ""
    if_failed: IfFailed = "return"  #: if the run of the key has failed
    run_id: str = ""  #: of the new run; empty: a random one
    on_cancel: OnCancel = "cancel"  #: of a child run, when its parent is cancelled
    deadline: timedelta | float | None = None  #: seconds after the start by which it must end
    key_ttl: timedelta | float | None = None  #: after it another run may take the key
    singleton: str | None = None  #: one open run of the workflow has it
    if_running: IfRunning = "reject"  #: if an open run has the singleton key
    max_open: int | None = None  #: open runs of the workflow; more are refused with TooManyRuns


class Launcher(Protocol):
    """The interface of an engine for ``.start()``."""

    def start(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> RunHandle[Any]: ...

    def start_many(
        self,
        workflow: Workflow[..., Any],
        inputs: list[dict[str, Json]],
        options: StartOptions,
        keys: Sequence[str] | None,
    ) -> Sequence[RunHandle[Any]]: ...

    async def astart(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> RunHandle[Any]: ...


_source: Callable[[], Launcher] | None = None


def set_launcher_source(source: Callable[[], Launcher] | None) -> Callable[[], Launcher] | None:
    """Fill the slot and return its previous source.

    The source is called at each start, so it may create its engine lazily.
    """
    global _source
    previous, _source = _source, source
    return previous


def launcher() -> Launcher:
    """Return the launcher; raises AuthoringError if the slot is empty."""
    if _source is None:
        raise AuthoringError(
            "no engine is configured to start a workflow: `import flowengine` provides one"
        )
    return _source()
