"""The launcher behind `.start()` of a decorated workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import Connection

from flowengine.authoring import StartOptions, Workflow, workflow_named
from flowengine.engine import Engine, Run
from flowengine.errors import UnknownWorkflow
from flowengine.program.nodes import Json


class EngineLauncher:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
            connection=cast("Connection | None", options.connection),
        )
        return Run(self._engine, run.id, workflow.definition.signature.result.read)

    def start_many(
        self, workflow: Workflow[..., Any], inputs: list[dict[str, Json]], options: StartOptions
    ) -> list[Run[Any]]:
        started = self._engine.start_many(
            workflow.program(),
            workflow.name,
            inputs,
            priority=options.priority,
            labels=options.labels,
        )
        read = workflow.definition.signature.result.read
        return [Run(self._engine, run.id, read) for run in started]

    async def astart(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> Run[Any]:
        return await asyncio.to_thread(self.start, workflow, inputs, options)

    def start_named(self, name: str, inputs: Mapping[str, Json], key: str | None) -> Run[Any]:
        """Start a workflow of this process by its qualified name."""
        workflow = workflow_named(name)
        if workflow is None:
            raise UnknownWorkflow(name, [])
        return self.start(workflow, workflow.inputs(**inputs), StartOptions(key=key))
