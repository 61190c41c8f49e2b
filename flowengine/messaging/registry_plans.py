"""Plans of the registry of agents: its scripts, with their keys and arguments."""

from __future__ import annotations

import os
import socket
from itertools import chain
from typing import Any

from pydantic import BaseModel

from flowengine.messaging.drivers import Members, Plan
from flowengine.messaging.keys import BATCH_LIMIT, Keys, endpoint
from flowengine.messaging.lua import Call, Script, microseconds
from flowengine.messaging.models import Agent, AgentId
from flowengine.messaging.payloads import check_payload

_HEARTBEAT = Script.load("heartbeat")
_DEREGISTER = Script.load("deregister")
_REPORT_LOST = Script.load("report_lost")
_LIST = Script.load("list_agents")


class _Record(BaseModel):
    """The stored record of an agent."""

    name: str
    agent_id: AgentId
    status: dict[str, Any]
    capabilities: list[str]
    incarnation: str
    owner: str  #: host and process id, for operators
    ttl: float  #: seconds that the agent is alive after a heartbeat


class RegistryPlans:
    def __init__(self, keys: Keys, *, ttl: float, retention: float, channel: str) -> None:
        self._keys, self._retention = keys, retention
        self.ttl = ttl  #: seconds that an agent is alive after a heartbeat
        self.channel = channel  #: of events; empty: none are published

    def heartbeat(self, mode: str, agent: Agent, incarnation: str) -> Plan[tuple[int, str]]:
        """The result code, and the owner of the other registration."""
        check_payload(agent.status, f"the status of agent {agent.agent_id}", "status")
        record = _Record(
            name=agent.name,
            agent_id=agent.agent_id,
            status=agent.status,
            capabilities=sorted(agent.capabilities),
            incarnation=incarnation,
            owner=f"{socket.gethostname()}, process {os.getpid()}",
            ttl=self.ttl,
        )
        event = agent.model_dump_json(include={"agent_id", "name"})
        outcome, *other = yield Call(
            _HEARTBEAT,
            self._keys.named(_HEARTBEAT.keys, endpoint(agent.agent_id)),
            (
                mode,
                endpoint(agent.agent_id),
                incarnation,
                microseconds(self.ttl),
                round(self._retention * 1000),
                self.channel,
                record.model_dump_json()[1:],
                record.model_dump_json(include={"capabilities"}),
                event[1:-1],
            ),
        )
        return outcome, _Record.model_validate_json(other[0]).owner if other else ""

    def deregister(self, agent_id: AgentId, incarnation: str) -> Plan[None]:
        keys = self._keys.named(_DEREGISTER.keys, endpoint(agent_id))
        yield Call(_DEREGISTER, keys, (endpoint(agent_id), incarnation, self.channel))

    def report_lost(self) -> Plan[None]:
        keys = self._keys.named(_REPORT_LOST.keys, "")
        while (yield Call(_REPORT_LOST, keys, (self.channel, BATCH_LIMIT))) == BATCH_LIMIT:
            pass

    def listing(self) -> Plan[list[dict[str, Any]]]:
        index, prefix = self._keys.named(["agents_index", "agent"], "")
        agent_keys = sorted((yield Members(index)))
        fixed = self._keys.named(_LIST.keys, "")
        agents: list[dict[str, Any]] = []
        for start in range(0, len(agent_keys), BATCH_LIMIT):
            batch = agent_keys[start : start + BATCH_LIMIT]
            names = [key.removeprefix(prefix).decode() for key in batch]
            arguments = [(*self._keys.named(["capabilities"], name), name) for name in names]
            now, *records = yield Call(_LIST, (*fixed, *batch), tuple(chain(*arguments)))
            agents += (_summary(record, now / 1_000_000) for record in records)
        return agents


class _StoredRecord(_Record):
    last_heartbeat: float  #: Unix time in seconds, by the clock of the Redis server


def _summary(record: bytes, now: float) -> dict[str, Any]:
    agent = _StoredRecord.model_validate_json(record)
    is_alive = now - agent.last_heartbeat <= agent.ttl
    return {**agent.model_dump(exclude={"incarnation", "ttl"}), "alive": is_alive}
