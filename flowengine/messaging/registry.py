"""Which agents there are, and whether they live.

An agent lives for `heartbeat_ttl_s` after each heartbeat. Its record stays longer than that, so
that others see *that* it was lost, and not only that it is not there. An agent that registers
gets an incarnation, and every heartbeat names it: two processes that take one id for theirs find
out about each other, and the older one stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterable
from typing import Any, Self, TypeVar

from pydantic import BaseModel
from redis.asyncio import Redis, RedisCluster

from flowengine.errors import AgentRegistryError
from flowengine.messaging.driving import (
    AsyncClient,
    Call,
    Members,
    Plan,
    RedisTrouble,
    SyncClient,
    SyncDriver,
    told,
)
from flowengine.messaging.interfaces import AgentRegistry
from flowengine.messaging.keys import Keys, endpoint
from flowengine.messaging.letters import microseconds
from flowengine.messaging.models import Agent, AgentId
from flowengine.messaging.private_loop import PrivateLoopDriver
from flowengine.messaging.scripting import Script

_BEAT = Script.load("beat")
_DEREGISTER = Script.load("deregister")
_LOSE = Script.load("lose")
_LIST = Script.load("list_agents")
_MOST_AT_ONCE = 500
_log = logging.getLogger(__name__)
T = TypeVar("T")


class _Record(BaseModel):
    """What is stored of an agent."""

    name: str
    agent_id: AgentId
    status: dict[str, Any]
    capabilities: list[str]
    incarnation: str
    #: host and process, for people
    owner: str
    #: seconds that it lives after a heartbeat
    ttl: float


class RedisAgentRegistry(AgentRegistry):
    """Agents in Redis, over `redis.Redis` or `redis.asyncio.Redis`.

    The methods that are not coroutines may be called from anywhere, with or without a running
    loop; they come back when Redis has answered, and raise `AgentRegistryError` when it does
    not. Heartbeats are sent by a thread, so they go on while a loop is busy.
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
        """`heartbeat_interval_s` is a third of the ttl, `keep_lost_s` ten times the ttl."""
        if isinstance(redis, RedisCluster):
            raise TypeError(
                "in a cluster, give the registry a redis.RedisCluster, not an async one"
            )
        interval = heartbeat_ttl_s / 3 if heartbeat_interval_s is None else heartbeat_interval_s
        if not 0 < interval < heartbeat_ttl_s:
            raise ValueError(
                f"a heartbeat every {interval:g} s does not keep an agent alive whose "
                f"heartbeat_ttl_s is {heartbeat_ttl_s:g}"
            )
        self._redis, self._keys = redis, Keys(key_prefix)
        self._ttl, self._interval = heartbeat_ttl_s, interval
        self._kept = heartbeat_ttl_s * 10 if keep_lost_s is None else heartbeat_ttl_s + keep_lost_s
        #: Where events are published; each is an `AgentEvent` as JSON.
        self.events_channel = f"{key_prefix}:events:agent_status"
        self._channel = self.events_channel if enable_events else ""
        self._own: dict[AgentId, tuple[Agent, str]] = {}
        self._displaced: set[AgentId] = set()
        self._lock = threading.Lock()
        self._driver: SyncDriver | PrivateLoopDriver | None = None
        self._driver_of = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble_told = False

    # --- our agents ---

    def register(self, agent: Agent, *, exclusive: bool = False) -> None:
        """Make an agent known. Whoever had its id is displaced; `exclusive` refuses instead."""
        incarnation = secrets.token_hex(8)
        mode = "exclusive" if exclusive else "register"
        action = f"register {agent.agent_id}"
        outcome, other = self._run(action, self._beat(mode, agent, incarnation))
        if outcome == 0:
            raise AgentRegistryError(
                action, f"{other} has registered it and is alive; deregister it there"
            )
        if outcome == 2:
            _log.warning(
                "agent %s was registered by %s, which was alive; it is ours now",
                agent.agent_id,
                other,
                extra={"action": "agent_replaced", "agent": str(agent.agent_id)},
            )
        with self._lock:
            self._own[agent.agent_id] = (agent, incarnation)
            self._displaced.discard(agent.agent_id)

    def deregister(self, agent_id: AgentId) -> None:
        """Forget an agent: one of ours while its id is ours, or any other whoever has it."""
        with self._lock:
            _, incarnation = self._own.pop(agent_id, (None, ""))
        self._run(f"deregister {agent_id}", self._deregister(agent_id, incarnation))

    def displaced(self) -> set[AgentId]:
        """Those of our agents whose id another process has taken."""
        with self._lock:
            return set(self._displaced)

    # --- all agents ---

    async def list_registered(self) -> list[dict[str, Any]]:
        """All agents, the lost ones too: `alive` says which are which."""
        return await asyncio.to_thread(self.list_agents)

    def list_agents(self) -> list[dict[str, Any]]:
        """The same, for ordinary code."""
        return self._run("list agents", self._listing())

    async def find_by_capability(self, capability: str) -> list[AgentId]:
        """The living agents that can do this."""
        return await asyncio.to_thread(self.find_agents, capability)

    def find_agents(self, capability: str) -> list[AgentId]:
        """The same, for ordinary code."""
        return [
            AgentId.model_validate(agent["agent_id"])
            for agent in self.list_agents()
            if agent["alive"] and capability in agent["capabilities"]
        ]

    # --- heartbeats ---

    def start_heartbeats(self) -> None:
        """Send heartbeats from now on. Twice is once; in a forked process it begins anew."""
        if self._thread is None or not self._thread.is_alive():
            self._stop = threading.Event()
            self._thread = threading.Thread(
                target=self._beat_again_and_again,
                args=(self._stop,),
                name="flowengine-heartbeats",
                daemon=True,
            )
            self._thread.start()

    def stop_heartbeats(self) -> None:
        """Send no more; the agents are lost after their ttl, unless they are deregistered."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._thread = None

    def beat(self) -> None:
        """Send one heartbeat for each of our agents, and tell of those that are lost."""
        with self._lock:
            own = list(self._own.values())
        for agent, incarnation in own:
            plan = self._beat("beat", agent, incarnation)
            outcome, other = self._run(f"keep {agent.agent_id} alive", plan)
            if outcome == 0:
                self._give_way(agent.agent_id, incarnation, other)
        if self._channel:
            self._run("look for lost agents", self._lose())

    def close(self) -> None:
        """Stop the heartbeats, and let go of what was opened. The client stays yours."""
        self.stop_heartbeats()
        if isinstance(self._driver, PrivateLoopDriver) and self._driver_of == os.getpid():
            self._driver.close()
        self._driver = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _beat_again_and_again(self, stop: threading.Event) -> None:
        while True:
            try:
                self.beat()
                self._trouble_told = False
            except AgentRegistryError as error:
                if not self._trouble_told:
                    self._trouble_told = True
                    _log.warning(
                        "%s; heartbeats go on", error, extra={"action": "heartbeat_failed"}
                    )
            if stop.wait(self._interval):
                return

    def _give_way(self, agent_id: AgentId, incarnation: str, other: str) -> None:
        with self._lock:
            if self._own.get(agent_id, (None, ""))[1] != incarnation:
                return  # registered again meanwhile
            del self._own[agent_id]
            self._displaced.add(agent_id)
        _log.warning(
            "agent %s is no longer ours: %s has registered it too; its heartbeats stop here",
            agent_id,
            other,
            extra={"action": "agent_displaced", "agent": str(agent_id)},
        )

    # --- plans ---

    def _beat(self, mode: str, agent: Agent, incarnation: str) -> Plan[tuple[int, str]]:
        """The outcome, and whose the id is or was."""
        record = _Record(
            name=agent.name,
            agent_id=agent.agent_id,
            status=agent.status,
            capabilities=sorted(agent.capabilities),
            incarnation=incarnation,
            owner=f"{socket.gethostname()}, process {os.getpid()}",
            ttl=self._ttl,
        )
        event = agent.model_dump_json(include={"agent_id", "name"})
        outcome, *other = yield Call(
            _BEAT,
            self._keys.named(_BEAT.keys, endpoint(agent.agent_id)),
            (
                mode,
                endpoint(agent.agent_id),
                incarnation,
                microseconds(self._ttl),
                round(self._kept * 1000),
                self._channel,
                record.model_dump_json()[1:],
                record.model_dump_json(include={"capabilities"}),
                event[1:-1],
            ),
        )
        return outcome, _Record.model_validate_json(other[0]).owner if other else ""

    def _deregister(self, agent_id: AgentId, incarnation: str) -> Plan[bool]:
        keys = self._keys.named(_DEREGISTER.keys, endpoint(agent_id))
        arguments = (endpoint(agent_id), incarnation, self._channel)
        done = yield Call(_DEREGISTER, keys, arguments)
        return bool(done)

    def _lose(self) -> Plan[None]:
        keys = self._keys.named(_LOSE.keys, "")
        while (yield Call(_LOSE, keys, (self._channel, _MOST_AT_ONCE))) == _MOST_AT_ONCE:
            pass

    def _listing(self) -> Plan[list[dict[str, Any]]]:
        (index,) = self._keys.named(["agents_index"], "")
        found = sorted((yield Members(index)))
        fixed = self._keys.named(_LIST.keys, "")
        agents: list[dict[str, Any]] = []
        for start in range(0, len(found), _MOST_AT_ONCE):
            some = found[start : start + _MOST_AT_ONCE]
            now, *records = yield Call(_LIST, (*fixed, *some), tuple(self._besides(some)))
            agents += (_shown(record, now / 1_000_000) for record in records)
        return agents

    def _besides(self, agent_keys: Iterable[bytes]) -> Iterable[str | bytes]:
        (beginning,) = self._keys.named(["agent"], "")
        for key in agent_keys:
            name = key.removeprefix(beginning).decode()
            yield from self._keys.named(["capabilities"], name)
            yield name

    def _run(self, action: str, plan: Plan[T]) -> T:
        try:
            return self._opened().run(plan)
        except RedisTrouble as error:
            raise AgentRegistryError(action, told(error)) from error

    def _opened(self) -> SyncDriver | PrivateLoopDriver:
        with self._lock:
            if self._driver is None or self._driver_of != os.getpid():
                self._driver_of = os.getpid()
                self._driver = (
                    PrivateLoopDriver(self._redis)
                    if isinstance(self._redis, Redis)
                    else SyncDriver(self._redis)
                )
            return self._driver


def _shown(record: bytes, now: float) -> dict[str, Any]:
    known = _Timed.model_validate_json(record)
    return {
        "name": known.name,
        "agent_id": known.agent_id.model_dump(),
        "status": known.status,
        "alive": now - known.last_heartbeat <= known.ttl,
        "last_heartbeat": known.last_heartbeat,
        "capabilities": known.capabilities,
        "owner": known.owner,
    }


class _Timed(_Record):
    #: seconds since the epoch, by the clock of Redis
    last_heartbeat: float
