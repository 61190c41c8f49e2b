"""A workflow with the options of its next start: `workflow.options(key="mail-17").start(…)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from flowengine.authoring.celery_names import refuse_celery_names
from flowengine.authoring.current_function import refuse_start
from flowengine.authoring.launcher_slot import RunHandle, StartOptions, launcher
from flowengine.authoring.locations import user_location
from flowengine.authoring.scopes import current_scope
from flowengine.authoring.standard import WorkflowCall, start_child
from flowengine.errors import AuthoringError

if TYPE_CHECKING:
    from flowengine.authoring.facets import Workflow

P = ParamSpec("P")
R = TypeVar("R")


class Start(Generic[P, R]):
    """A workflow with the options for its next start."""

    def __init__(self, workflow: Workflow[P, R], options: StartOptions) -> None:
        self._workflow = workflow
        self._options = options
        self.definition = workflow.definition

    def start(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a durable run and return at once; inside a workflow, append a step that does."""
        workflow, scope = self._workflow, current_scope()
        if scope is None:
            refuse_start(workflow.definition.title)
            inputs = workflow.inputs(*args, **kwargs)
            return launcher().start(workflow, inputs, self._options)
        self._refuse_options()
        given = workflow.step_name, workflow.order, self._options.on_cancel
        return cast(RunHandle[R], start_child(scope, workflow.definition, args, kwargs, *given))

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Continue with this workflow: the return value for an event facet; see `Workflow.call`."""
        self._refuse_options()
        called = self._workflow.call(*args, **kwargs)
        return cast(R, replace(cast(WorkflowCall, called), on_cancel=self._options.on_cancel))

    def _refuse_options(self) -> None:
        if replace(self._options, on_cancel="cancel") != StartOptions():
            raise AuthoringError(
                f"{user_location()}: a child run takes no options but on_cancel: it is started "
                "once and inherits priority and tenant of its parent; leave the others out"
            )

    async def astart(self, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a durable run from a coroutine."""
        self._refuse_while_tracing()
        inputs = self._workflow.inputs(*args, **kwargs)
        return await launcher().astart(self._workflow, inputs, self._options)

    def start_many(
        self, arguments: Iterable[Mapping[str, Any]], *, keys: Iterable[str] | None = None
    ) -> list[RunHandle[R]]:
        """Start a durable run for each map of arguments, with dozens of runs in one commit."""
        self._refuse_while_tracing()
        if self._options.key is not None or self._options.connection is not None:
            raise AuthoringError(
                f"start_many of {self._workflow.definition.title} takes neither a key, which is "
                "for one run, nor a connection; give start_many(…, keys=[…]), or use start"
            )
        inputs = [self._workflow.inputs(**given) for given in arguments]  # type: ignore[call-arg]
        each = None if keys is None else list(keys)
        return list(launcher().start_many(self._workflow, inputs, self._options, each))

    def _refuse_while_tracing(self) -> None:
        # Every process that checks or starts the body traces it: each trace would
        # start one more run.
        refuse_start(self.definition.title)
        if current_scope() is not None:
            raise AuthoringError(
                f"{user_location()}: {self._workflow.definition.title} cannot be started so inside "
                "a workflow; call it like a function, which makes it a step, or use start(...), "
                "which starts a child run"
            )


refuse_celery_names(Start)
