"""The journal of a step: its conversation with a model, entry by entry.

Each entry is written under the lease of the step's task, and shows its tokens with the step.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace

from flowengine.engine import Engine
from flowengine.errors import ModelError, TryCancelled
from flowengine.evaluator import TaskDefinition
from flowengine.models import Answer, Part, ToolCall, ToolResult, Usage
from flowengine.models.messages import part_from
from flowengine.program.nodes import Json
from flowengine.sdk.conversation import Entry
from flowengine.store import codec
from flowengine.store.database import is_unavailable
from flowengine.store.exchanges import Exchange

log = logging.getLogger("flowengine")

_OUTAGE_SECONDS = 1.0  # between two attempts to record an entry while the database is away


class Journal:
    """The recorded entries of one step."""

    def __init__(self, engine: Engine, task: TaskDefinition) -> None:
        self._engine, self._task = engine, task
        with engine.database.read() as session:
            rows = session.exchanges.of_step(task.workflow_id, task.step_id)
        self.number = len(rows)  #: of the next entry
        self._usage, self._turns, self._model = Usage(), 0, ""
        self.entries: list[Entry] = []  #: since the last failed conversation
        for row in rows:
            if row.kind == "end":
                self.entries.clear()
            else:
                self._keep(_entry(row))

    def _keep(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry, Answer):
            self._usage, self._turns = self._usage + entry.usage, self._turns + 1
            self._model = entry.model

    def add(self, entry: Entry) -> None:
        """Record an entry; raises TryCancelled if the lease was lost."""
        entry = recordable(entry) if isinstance(entry, Answer) else entry
        self._keep(entry)
        self._write("answer" if isinstance(entry, Answer) else "result", entry.to_json())

    def end(self, problem: ModelError) -> None:
        """Record that this conversation has failed: another try begins a new one."""
        self._write("end", {"type": type(problem).__name__, "message": str(problem)})

    def _write(self, kind: str, content: Json) -> None:
        exchange = Exchange(self.number, kind, content)
        shown = {"model": self._model, "turns": self._turns, **self._usage.to_json()}
        while True:
            try:
                with self._engine.database.write() as session:
                    is_held = session.exchanges.add(
                        self._task, exchange, json.dumps(shown), session.now()
                    )
                break
            except Exception as problem:
                # An answer is paid for: it is kept until the database is back.
                if not is_unavailable(problem):
                    raise
                log.warning(
                    "an answer for %s cannot be recorded: %s; it is tried again",
                    self._task.step_path,
                    problem,
                    extra={"action": "exchange_not_recorded", "run": self._task.workflow_id},
                )
                time.sleep(_OUTAGE_SECONDS)
        if not is_held:
            raise TryCancelled(self._task.step_path)
        self.number += 1


def recordable(answer: Answer) -> Answer:
    """Return an answer that can be stored: arguments without a JSON form are unreadable."""
    return replace(answer, content=tuple(map(_recordable, answer.content)))


def _recordable(part: Part) -> Part:
    if isinstance(part, ToolCall):
        try:
            codec.dump(dict(part.arguments))
        except (TypeError, ValueError, RecursionError):
            return ToolCall(part.id, part.name, {}, repr(part.arguments)[:1000])
    return part


def _entry(row: Exchange) -> Entry:
    if row.kind == "answer":
        return Answer.from_json(row.content)
    result = part_from(row.content)
    assert isinstance(result, ToolResult)
    return result
