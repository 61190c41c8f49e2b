"""The handler of requests to start a workflow by name: tasks of `flowengine.execute`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from flowengine.authoring import workflow_named, workflow_names
from flowengine.engine import Engine
from flowengine.engine.executions import executed_run_id
from flowengine.errors import FlowengineError, UnpublishedWorkflow, WorkflowNotServed
from flowengine.program import Program, link_program
from flowengine.program.nodes import FacetKind, Json
from flowengine.program.standard import RESULT
from flowengine.store.failures import is_unavailable
from flowengine.worker.step_context import current_step

_SHOWN = 20  # workflows that the error about an unknown one names


class Programs:
    """The programs whose workflows a runner starts by name, beside those of imported modules."""

    def __init__(self, *, allow_scripts: bool = False) -> None:
        self._lock, self._allow_scripts = threading.Lock(), allow_scripts
        self._by_workflow: dict[str, Program] = {}

    def add(self, program: Program) -> list[str]:
        """Add a program; return the names of its workflows. A later one replaces an earlier one."""
        plan = link_program(program, allow_scripts=self._allow_scripts)
        names = sorted(n for n, f in plan.facets.items() if f.kind is FacetKind.WORKFLOW)
        with self._lock:
            self._by_workflow |= dict.fromkeys(names, program)
        return names

    def find(self, name: str, inputs: Mapping[str, Json]) -> tuple[Program, str, dict[str, Json]]:
        """Return the program of a workflow, its name there and the inputs of a start."""
        if (program := self._by_workflow.get(name)) is not None:
            return program, name, dict(inputs)
        workflow = workflow_named(name)
        if workflow is None:
            known = sorted({*self._by_workflow.copy(), *workflow_names()})
            raise WorkflowNotServed(name[:200], known[:_SHOWN])
        arguments = workflow.definition.signature.received(name, inputs)
        return workflow.program(), workflow.name, workflow.inputs(**arguments)


class ExecuteHandler:
    """Starts the run of a request; a second try finds the run of the first."""

    is_async = validates = False

    def __init__(self, engine: Engine, programs: Programs) -> None:
        self._engine, self._programs = engine, programs

    @staticmethod
    def is_final(problem: BaseException) -> bool:
        """Whether no other runner and no later time would help."""
        is_refused = isinstance(problem, FlowengineError | TypeError | ValueError)
        is_missing = isinstance(problem, WorkflowNotServed)
        return is_refused and not is_missing and not is_unavailable(problem)

    def call(self, data: Mapping[str, Json]) -> str:
        step = current_step()
        name, inputs = data["workflow"], data["inputs"] or {}
        options: dict[str, Any] = dict(data.get("options") or {})
        program: Any = data.get("program")
        if program is None:
            program, name, inputs = self._found(name, inputs)
        with self._engine.database.read() as session:
            request = session.runs.get(step.run_id)
        run = self._engine.start(
            program,
            name,
            inputs,
            # Not of the options: a request starts runs of its own tenant.
            tenant=request.tenant if request else "",
            run_id=executed_run_id(step.idempotency_key),
            priority=options.get("priority", 0),
            labels=options.get("labels", {}),
        )
        return run.id

    def _found(self, name: str, inputs: Mapping[str, Json]) -> tuple[Any, str, dict[str, Json]]:
        """Return the program of a workflow of this runner, or else of the catalogue."""
        try:
            return self._programs.find(name, inputs)
        except WorkflowNotServed:
            try:
                return self._engine.catalogue.prepared(name), name, dict(inputs)
            except UnpublishedWorkflow:
                pass
            raise

    def written(self, returned: Any) -> dict[str, Json]:
        return {RESULT: returned}
