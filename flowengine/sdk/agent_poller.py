"""An agent that needs the database and no broker.

    poller = AgentPoller.connect("postgresql+psycopg://…")
    poller.register("billing.ProcessPayment", pay)
    poller.start()

On PostgreSQL it is notified of due tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from flowengine.authoring import EventFacet, FunctionWorkflow
from flowengine.engine import Engine
from flowengine.sdk.config import AgentPollerConfig, check_heartbeat
from flowengine.sdk.connection import connected_engine
from flowengine.sdk.handlers import Callback
from flowengine.sdk.polling_server import PollingServer
from flowengine.sdk.tool_registry import ToolRegistry
from flowengine.settings import Settings

C = TypeVar("C", bound=Callback)
F = TypeVar("F", bound=EventFacet[..., Any] | FunctionWorkflow[..., Any])

_STOP_SECONDS = 30.0  # that running callbacks get when the poller stops


class AgentPoller:
    """Runs registered callbacks for the tasks of one task list."""

    def __init__(self, engine: Engine, config: AgentPollerConfig | None = None) -> None:
        self.engine, self.config = engine, config or AgentPollerConfig()
        check_heartbeat(self.config.heartbeat_interval_ms, engine.settings.server_timeout)
        self._tools = ToolRegistry()
        self._server = PollingServer(
            engine, self.config, self._tools.table, stop_seconds=_STOP_SECONDS
        )
        self._owns_engine = False

    @classmethod
    def connect(
        cls,
        database_url: str = "",
        config: AgentPollerConfig | None = None,
        *,
        settings: Settings | None = None,
    ) -> Self:
        """Return a poller on a database, with an engine of its own; `close` closes it.

        Without a URL it takes the one of the settings, those of the environment by default.
        """
        engine = connected_engine(database_url, settings)
        try:
            poller = cls(engine, config)
        except BaseException:
            engine.close()
            raise
        poller._owns_engine = True
        return poller

    # --- handlers ---

    @overload
    def register(self, facet_name: str, callback: Callback) -> None: ...
    @overload
    def register(self, facet_name: str) -> Callable[[C], C]: ...
    @overload
    def register(self, facet_name: F) -> F: ...
    def register(self, facet_name: Any, callback: Any = None) -> Any:
        """Register the handler of an event facet, by its qualified or its short name.

        A callback takes the arguments of a step as a dict and returns its results as a dict; it may
        be an ``async def``. With a name alone this is a decorator. An `EventFacet` is registered
        under its own name.
        """
        return self._tools.register(facet_name, callback)

    def registered_names(self) -> list[str]:
        """Return the names with which handlers are registered, sorted."""
        return self._tools.registered_names()

    # --- properties ---

    @property
    def server_id(self) -> str:
        """The id of this poller in the registry of servers."""
        return self._server.server_id

    @property
    def is_running(self) -> bool:
        """Whether `start` polls for tasks."""
        return self._server.is_running

    # --- the loop ---

    def start(self) -> None:
        """Register this server, and run callbacks until `stop` is called. Blocks."""
        self._server.run()

    def stop(self) -> None:
        """End the loop: finish the running callbacks, give other tasks back, and deregister.

        It waits for the end of `start`, unless it is called by that thread (by a handler of a
        signal) or by a callback. A callback that does not return in 30 seconds is left behind, and
        its task runs elsewhere.
        """
        self._server.stop()

    def poll_once(self) -> int:
        """Work on due tasks in this thread, at most `max_concurrent`; return their number.

        It starts no thread, registers no server and sends no heartbeat: it is for tests, and for
        callbacks that return within the setting `server_timeout`. Coroutines run in this thread.
        """
        return self._server.poll_once()

    def cache_workflow_ast(self, workflow_id: str, ast: object = None) -> None:
        """Read the program of a run before it is needed.

        The run's program is stored with it, and a poller reads it when it first reports a task of
        it: so this only saves that query. `ast` is accepted and not used: a program is not changed
        by the agents that work on its run. Raises UnknownRun.
        """
        self._server.cache_program(workflow_id)

    # --- the engine of `connect` ---

    def close(self) -> None:
        """Stop; close the engine if `connect` has made it."""
        self.stop()
        if self._owns_engine:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
