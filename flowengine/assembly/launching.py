"""What `.start()` of a decorated workflow reaches."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from sqlalchemy import Connection

from flowengine.authoring import StartOptions, Workflow
from flowengine.engine import Engine, Run
from flowengine.program.nodes import Json


class EngineLauncher:
    """Starts decorated workflows on an engine."""

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

    async def astart(
        self, workflow: Workflow[..., Any], inputs: dict[str, Json], options: StartOptions
    ) -> Run[Any]:
        return await asyncio.to_thread(self.start, workflow, inputs, options)
