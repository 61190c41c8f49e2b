"""The slot through which ``.start()`` reaches an engine.

This floor knows no database and no broker. Whoever puts an engine together
fills the slot with a way to get one; a workflow asks it at each start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flowengine.errors import AuthoringError
from flowengine.program.nodes import Json

if TYPE_CHECKING:
    from flowengine.authoring.facets import Workflow

R_co = TypeVar("R_co", covariant=True)


class RunHandle(Protocol[R_co]):
    """A run that was started, wherever it is executed."""

    @property
    def id(self) -> str: ...

    def result(self, timeout: float | None = None) -> R_co:
        """Wait for the run's result; raises RunFailed when it fails."""
        ...

    async def aresult(self, timeout: float | None = None) -> R_co:
        """Wait for the run's result without blocking the event loop."""
        ...


@dataclass(frozen=True)
class StartOptions:
    """What a caller may say about one start."""

    key: str | None = None  #: a second start with the same key gives the first one's run
    priority: int = 0  #: higher goes first
    labels: Mapping[str, str] = field(default_factory=dict)
    connection: object | None = None  #: start inside this transaction of the caller's


class Launcher(Protocol):
    """What an engine offers to ``.start()``."""

    def start(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> RunHandle[Any]: ...

    def start_many(
        self, workflow: Workflow[..., Any], inputs: list[dict[str, Json]], options: StartOptions
    ) -> Sequence[RunHandle[Any]]: ...

    async def astart(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> RunHandle[Any]: ...


_source: Callable[[], Launcher] | None = None


def set_launcher_source(source: Callable[[], Launcher]) -> None:
    """Fill the slot. The source is asked at each start, so it may make its engine late."""
    global _source
    _source = source


def replace_launcher_source(
    source: Callable[[], Launcher] | None,
) -> Callable[[], Launcher] | None:
    """Fill the slot for a while; return what filled it before."""
    global _source
    before, _source = _source, source
    return before


def launcher() -> Launcher:
    """The engine that starts go to; raises AuthoringError when nothing fills the slot."""
    if _source is None:
        raise AuthoringError(
            "there is no engine to start a workflow with: `import flowengine` brings one"
        )
    return _source()
