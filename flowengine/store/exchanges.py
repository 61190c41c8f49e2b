"""Exchanges: the answers of models in a step, and the results of the tools that they asked for.

Each is one row, written under the lease of the step's task (fencing) before anything follows from
it. Large contents are stored like the large values of a run.
"""

from __future__ import annotations

from typing import NamedTuple

from flowengine.evaluator import TaskDefinition
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.parts import Part
from flowengine.store.tables import TASK_IS_RUNNING

_HOLD = (
    "UPDATE flowengine_task SET activity = %s, progress = %s "
    f"WHERE uuid = %s AND lease = %s AND {TASK_IS_RUNNING} RETURNING uuid"
)
# Invariant: the reference first. Its lock keeps a purge from removing a value that is stored
# already and that this row is about to refer to.
_REFER = (
    "INSERT INTO flowengine_reference (run_id, hash) VALUES (%s, %s) "
    "ON CONFLICT DO NOTHING RETURNING hash"
)
_STORE = (
    "INSERT INTO flowengine_payload (hash, body, created) VALUES (%s, %s, %s) "
    "ON CONFLICT DO NOTHING RETURNING hash"
)
_ADD = (
    "INSERT INTO flowengine_exchange (run_id, step_id, number, kind, content, created) "
    "VALUES (%s, %s, %s, %s, %s, %s) RETURNING number"
)
_OF_STEP = (
    "SELECT number, kind, content FROM flowengine_exchange "
    "WHERE run_id = %s AND step_id = %s ORDER BY number"
)


class Exchange(NamedTuple):
    number: int
    kind: str
    content: Json


class Exchanges(Part):
    """In a transaction."""

    def of_step(self, run_id: str, step_id: str) -> list[Exchange]:
        rows = self._session.rows(_OF_STEP, (run_id, step_id))
        contents = [codec.attributes(content) for _, _, content in rows]
        self._session.payloads.fill_in(contents)
        return [
            Exchange(number, kind, content["content"])
            for (number, kind, _), content in zip(rows, contents, strict=True)
        ]

    def add(self, task: TaskDefinition, exchange: Exchange, progress: str, now: int) -> bool:
        """Add one, and show the progress of its task; False: the lease was lost, nothing is."""
        if not self._session.rows(_HOLD, (now, progress, task.uuid, task.lease)):
            return False
        encoder = codec.Encoder()
        content = encoder.attributes({"content": exchange.content})
        for digest, body in sorted(encoder.payloads.items()):
            self._session.rows(_REFER, (task.workflow_id, digest))
            self._session.rows(_STORE, (digest, body, now))
        of_step = (task.workflow_id, task.step_id, exchange.number)
        self._session.rows(_ADD, (*of_step, exchange.kind, content, now))
        return True
