"""The registry of agents, with heartbeats.

An agent is alive for `heartbeat_ttl_s` after each heartbeat. Its record is kept longer, so that
others can see that it was lost. Each registration has an incarnation, which fences heartbeats: if a
second process registers the same id, the heartbeats of the first are refused and stop.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from functools import partial
from typing import Any, Self, TypeVar

from redis.asyncio import Redis, RedisCluster

from flowengine.errors import AgentRegistryError, ValueRefused
from flowengine.fork import at_fork
from flowengine.log_filter import safe_logger
from flowengine.messaging.drivers import (
    AsyncClient,
    Plan,
    PrivateLoopDriver,
    RedisErrors,
    SyncClient,
    SyncDriver,
    describe,
)
from flowengine.messaging.interfaces import AgentRegistry
from flowengine.messaging.keys import Keys
from flowengine.messaging.lua import microseconds
from flowengine.messaging.models import Agent, AgentId
from flowengine.messaging.registry_plans import RegistryPlans

_log = safe_logger(__name__)
_SHOWN_AGENTS = 5  # that a log line names
T = TypeVar("T")


class RedisAgentRegistry(AgentRegistry):
    """Agents in Redis, over `redis.Redis` or `redis.asyncio.Redis`.

    Synchronous methods may be called with or without a running loop. They block until Redis
    responds, and raise `AgentRegistryError` if it does not. A thread sends the heartbeats, so they
    continue while a loop is busy.
    """

    def __init__(
        self,
        redis: AsyncClient | SyncClient,
        key_prefix: str = "ao",
        heartbeat_ttl_s: float = 30.0,
        heartbeat_interval_s: float | None = None,
        enable_events: bool = False,
        *,
        keep_lost_s: float | None = None,
    ) -> None:
        """The default of `heartbeat_interval_s` is a third of the ttl.

        Without `keep_lost_s`, records are kept for ten times the ttl after the last heartbeat.
        """
        if isinstance(redis, RedisCluster):
            raise TypeError(
                "the registry needs a redis.RedisCluster, not a redis.asyncio.RedisCluster"
            )
        microseconds(heartbeat_ttl_s, "heartbeat_ttl_s")
        interval = heartbeat_ttl_s / 3 if heartbeat_interval_s is None else heartbeat_interval_s
        if not 0 < interval < heartbeat_ttl_s:
            raise ValueError(
                f"a heartbeat interval of {interval:g} s is not shorter than "
                f"heartbeat_ttl_s={heartbeat_ttl_s:g}"
            )
        self._redis, self._interval = redis, interval
        kept = heartbeat_ttl_s * 9 if keep_lost_s is None else keep_lost_s
        #: The channel of published events; each is the JSON of an `AgentEvent`.
        self.events_channel = f"{key_prefix}:events:agent_status"
        self._plans = RegistryPlans(
            Keys(key_prefix),
            ttl=heartbeat_ttl_s,
            retention=heartbeat_ttl_s + kept,
            channel=self.events_channel if enable_events else "",
        )
        self._own: dict[AgentId, tuple[Agent, str]] = {}
        self._displaced: set[AgentId] = set()
        self._reset_locks()
        self._driver: SyncDriver | PrivateLoopDriver | None = None
        self._driver_pid = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error_logged = False
        at_fork(in_child=self._reset_locks)

    def _reset_locks(self) -> None:
        """New locks: at a fork, a thread that the child does not have may hold the old ones."""
        self._lock = threading.Lock()
        #: Invariant: no heartbeat of an agent is under way while it is deregistered. A heartbeat
        #: creates the record that it does not find, so a late one would register the agent again.
        self._heartbeat_lock = threading.Lock()

    # --- agents of this registry ---

    def register(self, agent: Agent, *, exclusive: bool = False) -> None:
        """Register an agent. It replaces a registration of the same id, unless `exclusive`."""
        incarnation = secrets.token_hex(8)
        mode = "exclusive" if exclusive else "register"
        action = f"register {agent.agent_id}"
        outcome, other = self._run(action, self._plans.heartbeat(mode, agent, incarnation))
        if outcome == 0:
            raise AgentRegistryError(
                action, f"{other} has registered it and is alive: deregister it there first"
            )
        if outcome == 2:
            _log.warning(
                "agent %s replaces the live registration of %s; heartbeats there will stop",
                agent.agent_id,
                other,
                extra={"action": "agent_replaced", "agent": str(agent.agent_id)},
            )
        with self._lock:
            self._own[agent.agent_id] = (agent, incarnation)
            self._displaced.discard(agent.agent_id)

    def deregister(self, agent_id: AgentId) -> None:
        """Deregister an agent; one of this registry only while no other process has its id."""
        with self._heartbeat_lock:
            with self._lock:
                _, incarnation = self._own.pop(agent_id, (None, ""))
            self._run(f"deregister {agent_id}", self._plans.deregister(agent_id, incarnation))

    def displaced(self) -> set[AgentId]:
        """Agents of this registry whose id another process has registered."""
        with self._lock:
            return set(self._displaced)

    # --- all agents ---

    async def list_registered(self) -> list[dict[str, Any]]:
        """All agents, including lost ones: see `alive`."""
        return await asyncio.to_thread(self.list_agents)

    def list_agents(self) -> list[dict[str, Any]]:
        """`list_registered` for synchronous code."""
        return self._run("list agents", self._plans.listing())

    async def find_by_capability(self, capability: str) -> list[AgentId]:
        """The living agents with this capability."""
        return await asyncio.to_thread(self.find_agents, capability)

    def find_agents(self, capability: str) -> list[AgentId]:
        """`find_by_capability` for synchronous code."""
        return [
            AgentId.model_validate(agent["agent_id"])
            for agent in self.list_agents()
            if agent["alive"] and capability in agent["capabilities"]
        ]

    # --- heartbeats ---

    def start_heartbeats(self) -> None:
        """Start the heartbeat thread. Idempotent; a forked process must start its own."""
        if self._thread is None or not self._thread.is_alive():
            self._stop = threading.Event()
            send, name = partial(self._send_heartbeats, self._stop), "flowengine-heartbeats"
            self._thread = threading.Thread(target=send, name=name, daemon=True)
            self._thread.start()

    def stop_heartbeats(self) -> None:
        """Stop the heartbeat thread; agents that stay registered are lost after their ttl."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._thread = None

    def beat(self) -> None:
        """Send one heartbeat for each agent, and publish agents that are lost."""
        with self._lock:
            own = list(self._own.values())
        for agent, incarnation in own:
            with self._heartbeat_lock:
                if not self._is_own(agent.agent_id, incarnation):
                    continue  # deregistered, or registered again, in the meantime
                plan = self._plans.heartbeat("beat", agent, incarnation)
                outcome, other = self._run(f"send the heartbeat of {agent.agent_id}", plan)
            if outcome == 0:
                self._displace(agent.agent_id, incarnation, other)
        if self._plans.channel:
            self._run("report lost agents", self._plans.report_lost())

    def close(self) -> None:
        """Stop the heartbeats and close own connections; the client stays open."""
        self.stop_heartbeats()
        if isinstance(self._driver, PrivateLoopDriver) and self._driver_pid == os.getpid():
            self._driver.close()
        self._driver = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_heartbeats(self, stop: threading.Event) -> None:
        while True:
            try:
                self.beat()
                self._error_logged = False
            except (AgentRegistryError, ValueRefused) as error:
                if not self._error_logged:
                    self._error_logged = True
                    _log.warning(
                        "heartbeat of %s failed: %s; it is repeated every %g s, and %g s after its "
                        "last one an agent counts as lost",
                        self._shown_own(),
                        error,
                        self._interval,
                        self._plans.ttl,
                        extra={"action": "heartbeat_failed"},
                    )
            if stop.wait(self._interval):
                return

    def _shown_own(self) -> str:
        """Return the agents of this registry as the log names them: a few, and how many more."""
        with self._lock:
            names = [str(agent_id) for agent_id in self._own]
        more = f" and {len(names) - _SHOWN_AGENTS} more" if len(names) > _SHOWN_AGENTS else ""
        return f"agents {', '.join(names[:_SHOWN_AGENTS])}{more}" if names else "no agent"

    def _is_own(self, agent_id: AgentId, incarnation: str) -> bool:
        return self._own.get(agent_id, (None, ""))[1] == incarnation

    def _displace(self, agent_id: AgentId, incarnation: str, other: str) -> None:
        with self._lock:
            if not self._is_own(agent_id, incarnation):
                return  # registered again in the meantime
            del self._own[agent_id]
            self._displaced.add(agent_id)
        _log.warning(
            "agent %s was registered by %s: its heartbeats stop in this process",
            agent_id,
            other,
            extra={"action": "agent_displaced", "agent": str(agent_id)},
        )

    def _run(self, action: str, plan: Plan[T]) -> T:
        try:
            return self._open_driver().run(plan)
        except RedisErrors as error:
            raise AgentRegistryError(action, describe(error)) from error

    def _open_driver(self) -> SyncDriver | PrivateLoopDriver:
        with self._lock:
            if self._driver is None or self._driver_pid != os.getpid():
                self._driver_pid = os.getpid()
                if isinstance(self._redis, Redis):
                    self._driver = PrivateLoopDriver(self._redis)
                else:
                    self._driver = SyncDriver(self._redis)
            return self._driver
