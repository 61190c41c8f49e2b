"""The record of a conversation with a model about one step: its entries are calls of the step.

An answer of the model, and the result of a tool, is a call below the step, as the calls that a
durable function makes in place: the same rows, read by the same query, and inserted under the lease
of the step's task (`store.calls`).

The conversation is no durable function, because the step is not one. It is an event facet of a
stored program, which the runner, a worker or a poller may work on: its tries have the retry policy
of the facet, and its result has the declared names. And its code need not fit the record:
`conversation.next_move` goes on from the entries with the tools and limits of today, where the
replay of a function would diverge.

Before these rows there was a table of exchanges. Entries that it has of an open step are read, and
come first; nothing is added to it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from flowengine.engine import Engine
from flowengine.errors import ModelError, TryCancelled
from flowengine.evaluator import Step, TaskDefinition
from flowengine.evaluator.states import StepState
from flowengine.models import Answer, Part, ToolCall, ToolResult, Usage
from flowengine.models.messages import part_from
from flowengine.program.function_calls import CallKind, FunctionCall, digest_and_size
from flowengine.program.nodes import Json
from flowengine.program.standard import RESULT
from flowengine.sdk.conversation import Entry
from flowengine.store import codec
from flowengine.store.calls import MadeCalls
from flowengine.store.failures import is_unavailable
from flowengine.worker.in_place_calls import in_place_row

log = logging.getLogger("flowengine")

ANSWER = "flowengine.ask_model"  #: a call whose result is an answer of the model
REFUSAL = "flowengine.refuse_tool_call"  #: its result tells the model why its call is not made
END = "flowengine.end_conversation"  #: another try begins a new conversation behind it
_OUTAGE_SECONDS = 1.0  # between two attempts to record an entry while the database is away


class Journal:
    """The recorded entries of one step."""

    def __init__(self, engine: Engine, task: TaskDefinition) -> None:
        """Read the entries; raises TryCancelled if a retry has replaced the step."""
        self._engine, self._task = engine, task
        with engine.database.read() as session:
            before = session.exchanges.of_step(task.workflow_id, task.step_id)
            stored = session.calls.record(task.workflow_id, task.step_key, task.step_path)
            self._since = session.now()  #: the end of the entry before the next one
        if stored is None or stored.step.id != task.step_id:
            raise TryCancelled(task.step_path)
        self._step: Step = stored.step
        self._usage, self._turns, self._model = Usage(), 0, ""
        self.entries: list[Entry] = []  #: since the last failed conversation
        for exchange in before:
            self._read(_FACETS.get(exchange.kind, ""), exchange.content)
        for call, end in zip(stored.record.calls, stored.record.ends, strict=True):
            self._read(call.facet, end.result)
        self.number = len(before) + len(stored.record.calls)  #: of the next entry

    def _read(self, facet: str, content: Json) -> None:
        if facet == END:
            self.entries.clear()
        else:
            self._keep(_entry(facet, content))

    def _keep(self, entry: Entry) -> None:
        self.entries.append(entry)
        if isinstance(entry, Answer):
            self._usage, self._turns = self._usage + entry.usage, self._turns + 1
            self._model = entry.model

    def add(
        self, entry: Entry, facet: str = REFUSAL, arguments: Mapping[str, Json] | None = None
    ) -> None:
        """Record an entry; raises TryCancelled if the lease was lost.

        `facet` and `arguments` are those of the tool, if the entry is its result.
        """
        if isinstance(entry, Answer):
            entry, facet = recordable(entry), ANSWER
        self._keep(entry)
        self._write(facet, entry.to_json(), arguments or {})

    def end(self, problem: ModelError) -> None:
        """Record that this conversation has failed: another try begins a new one."""
        self._write(END, {"type": type(problem).__name__, "message": str(problem)}, {})

    def _write(self, facet: str, content: Json, arguments: Mapping[str, Json]) -> None:
        given = dict(arguments)
        digest, size = digest_and_size(given)
        call = FunctionCall(
            self.number,
            CallKind.STEP,
            facet,
            given,
            digest,
            heard=(self.number - 1,) if self.number else (),
            size=size,
        )
        row = in_place_row(self._step, call, self._since)
        row.state, row.returns = StepState.COMPLETE, {RESULT: content}
        while not self._written(row):
            time.sleep(_OUTAGE_SECONDS)
        self.number += 1

    def _written(self, row: Step) -> bool:
        """Insert a row and show the tokens; False if the database is away."""
        task = self._task
        shown = {"model": self._model, "turns": self._turns, **self._usage.to_json()}
        try:
            with self._engine.database.write() as session:
                row.updated = now = session.now()
                made = MadeCalls(row.run_id, task.uuid, task.lease, [row])
                is_held = bool(session.calls.insert([made])())
                if is_held:
                    session.reports.heartbeat(task.uuid, task.lease, now, json.dumps(shown))
        except Exception as problem:
            # An answer is paid for: it is kept until the database is back.
            if not is_unavailable(problem):
                raise
            log.warning(
                "an answer for %s cannot be recorded: %s; it is tried again",
                task.step_path,
                problem,
                extra={"action": "exchange_not_recorded", "run": task.workflow_id},
            )
            return False
        if not is_held:
            raise TryCancelled(task.step_path)
        self._since = now
        return True


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


#: The facets of entries in the table of exchanges, by their kind; of a result any will do.
_FACETS = {"answer": ANSWER, "end": END}


def _entry(facet: str, content: Json) -> Entry:
    if facet == ANSWER:
        return Answer.from_json(content)
    result = part_from(content)
    assert isinstance(result, ToolResult)
    return result
