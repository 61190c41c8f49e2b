"""The launcher behind `.start()` of a decorated workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from sqlalchemy import Connection

from flowengine.authoring import IfFailed, StartOptions, Workflow, workflow_named, workflow_names
from flowengine.engine import Engine, Run
from flowengine.engine.used_keys import key_options
from flowengine.errors import (
    InvalidInputs,
    LimitReached,
    UnpublishedWorkflow,
    WorkflowNotImported,
)
from flowengine.evaluator.records import derived_id
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.store.caller_transaction import CallerTransaction


class TransactionSource(Protocol):
    """A web framework that knows the caller's transaction."""

    def __call__(self, engine: Engine, connection: object, /) -> CallerTransaction | None:
        """Return the transaction of that connection, or the current one of this thread, if any."""


_transaction_source: TransactionSource | None = None


def set_transaction_source(source: TransactionSource | None) -> TransactionSource | None:
    """Let starts join the transactions of a web framework; return the previous source."""
    global _transaction_source
    previous, _transaction_source = _transaction_source, source
    return previous


_SHOWN = 20  #: workflows that the error about an unknown one names


class EngineLauncher:
    def __init__(self, engine: Engine) -> None:
        self._engine = self.engine = engine

    def _transaction(self, options: StartOptions) -> Connection | CallerTransaction | None:
        given = options.connection
        if _transaction_source is None or isinstance(given, Connection):
            return cast("Connection | None", given)
        return _transaction_source(self._engine, given)

    def start(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> Run[Any]:
        run = self._engine.start(
            workflow.program(),
            workflow.name,
            inputs,
            key=options.key,
            priority=options.priority,
            labels=options.labels,
            tenant=options.tenant,
            connection=self._transaction(options),
            if_failed=options.if_failed,
            run_id=options.run_id,
            deadline=options.deadline,
            key_ttl=options.key_ttl,
            singleton=options.singleton,
            if_running=options.if_running,
            max_open=options.max_open,
        )
        return Run(self._engine, run.id, workflow.read_result)

    def start_many(
        self,
        workflow: Workflow[..., Any],
        inputs: list[dict[str, Json]],
        options: StartOptions,
        keys: Sequence[str] | None = None,
    ) -> list[Run[Any]]:
        if self._transaction(options) is not None:
            of_each = key_options(workflow.name, len(inputs), keys, options.if_failed)
            return [
                self.start(workflow, each, replace(options, **own))
                for each, own in zip(inputs, of_each, strict=True)
            ]
        started = self._engine.start_many(
            workflow.program(),
            workflow.name,
            inputs,
            priority=options.priority,
            labels=options.labels,
            tenant=options.tenant,
            keys=keys,
            if_failed=options.if_failed,
            deadline=options.deadline,
            key_ttl=options.key_ttl,
            max_open=options.max_open,
        )
        return [Run(self._engine, run.id, workflow.read_result) for run in started]

    async def astart(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> Run[Any]:
        return await asyncio.to_thread(self.start, workflow, inputs, options)

    def start_named(
        self,
        name: str,
        inputs: Mapping[str, Json],
        key: str,
        if_failed: str = "return",
        message_id: str = "",
    ) -> Run[Any]:
        """Start a workflow by its qualified name, as a message demands it.

        It is one of this process, or else of the catalogue.
        """
        _check_message(name, inputs, key, self._engine.settings.max_execute_bytes)
        options = StartOptions(key=key or None, if_failed=cast(IfFailed, if_failed))
        if if_failed == "start" and message_id:
            # The run that this message starts is found by its id: a second delivery of the message
            # starts no other, even if that run has failed meanwhile.
            run_id = derived_id("execute", name, repr((message_id, key)))
            options = replace(options, run_id=run_id)
        workflow = workflow_named(name)
        if workflow is None:
            return self._start_published(name, inputs, options)
        arguments = workflow.definition.signature.received(name, inputs)
        return self.start(workflow, workflow.inputs(**arguments), options)

    def _start_published(
        self, name: str, inputs: Mapping[str, Json], options: StartOptions
    ) -> Run[Any]:
        try:
            return self._engine.start(
                *(name, inputs),
                key=options.key,
                if_failed=options.if_failed,
                run_id=options.run_id,
            )
        except UnpublishedWorkflow:
            raise WorkflowNotImported(name[:200], workflow_names()[:_SHOWN]) from None


def _check_message(name: object, inputs: object, key: object, most: int) -> None:
    """Refuse arguments of a message that no start could have sent."""
    if not isinstance(name, str) or not isinstance(inputs, Mapping):
        problem = "flowengine.execute takes the name of a workflow, and a map of inputs"
        raise InvalidInputs(repr(name)[:200], [problem])
    if key is not None and not isinstance(key, str):
        raise InvalidInputs(name[:200], [f"the key must be text, not a {type(key).__name__}"])
    try:
        size = len(codec.dump(dict(inputs)))
    except (TypeError, ValueError, RecursionError):
        return  # the check of each input names the part that is not JSON
    if size > most:
        what = f"the inputs for {name[:200]!r} take {size:,} bytes as JSON"
        cure = "send the address of the data instead"
        raise LimitReached(what, most, "max_execute_bytes", cure)
