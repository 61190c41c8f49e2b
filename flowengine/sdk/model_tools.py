"""The tools that a runner offers to a model: the handlers of its registry.

Providers accept names of letters, digits, `_` and `-`. So `billing.Pay` is offered as
`billing__Pay`; the table of both names, not the text, leads a call back to its handler.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flowengine.authoring import EventFacet, WorkflowCall
from flowengine.errors import DoesNotFit, RunnerRefused
from flowengine.log_context import logged_step
from flowengine.models import Tool, ToolCall, ToolResult
from flowengine.program.function_options import function_of
from flowengine.program.json_schemas import object_schema
from flowengine.program.limits import clipped
from flowengine.program.nodes import FacetKind, Field, Json, Schemas
from flowengine.program.plan import FacetPlan, Plan
from flowengine.program.types import misfits
from flowengine.program.validator import Checks
from flowengine.sdk.handlers import CallbackHandler
from flowengine.sdk.tool_registry import ToolRegistry
from flowengine.secret_keys import without_secrets
from flowengine.store import codec
from flowengine.worker.step_context import StepContext

SUBMIT = "submit_result"
_LONGEST = 64  #: characters of a name
_LONGEST_ERROR = 2_000  #: characters of an error that the model reads
_LONGEST_ABOUT = 2_000  #: characters of a description


def tool_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name of each handler as a tool, all different."""
    found: dict[str, str] = {}
    taken = {SUBMIT}
    for name in sorted(set(names)):
        tool = re.sub(r"[^a-zA-Z0-9_-]", "_", name.replace(".", "__"))
        if tool in taken or len(tool) > _LONGEST or not name.isascii():
            digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
            tool = f"{tool[: _LONGEST - 9]}_{digest}"
        taken.add(tool)
        found[name] = tool
    return found


@dataclass(frozen=True, slots=True)
class _Offer:
    handler: str  #: its name in the registry
    fields: tuple[Field, ...] | None  #: None: any arguments
    schemas: Schemas
    tool: Tool


class ModelTools:
    """The tools for the runs of one program."""

    def __init__(
        self, registry: ToolRegistry, plan: Plan, limits: tuple[int, int], max_checks: int
    ) -> None:
        """`limits` are the bytes and the depth of a value."""
        self._registry, self._limits, self._max_checks = registry, limits, max_checks
        # Only activations run a durable function: a model cannot call one in place.
        callable_names = [n for n in registry.registered_names() if function_of(n) is None]
        names = tool_names(callable_names)
        self._offers = {tool: _offer(registry, plan, name, tool) for name, tool in names.items()}

    def offered(self, without: str, only: Collection[str] | None) -> dict[str, Tool]:
        """Return the tools for a step of the facet `without`; with `only`, of these handlers."""
        return {
            name: offer.tool
            for name, offer in self._offers.items()
            if offer.handler not in (without, without.rpartition(".")[2])
            and (only is None or offer.handler in only)
        }

    def handler_of(self, call: ToolCall) -> str:
        """Return the name of the handler that a call is for."""
        return self._offers[call.name].handler

    def call(self, call: ToolCall, step: StepContext, number: int) -> ToolResult:
        """Call the handler; an error of it is a result that the model reads."""
        offer = self._offers[call.name]
        try:
            if problems := self._problems(offer, call.arguments):
                raise DoesNotFit(offer.handler, problems)
            with _as_tool(step, offer.handler, number):
                content = self._content(offer.handler, call.arguments)
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}"
            return ToolResult(call.id, clipped(text, _LONGEST_ERROR), is_error=True)
        return ToolResult(call.id, content)

    def _problems(self, offer: _Offer, arguments: Mapping[str, Json]) -> list[str]:
        if offer.fields is None:
            return []
        known = [field.name for field in offer.fields]
        takes = ", ".join(known) or "nothing"
        problems = [
            f"{name!r} is unknown, it takes {takes}" for name in arguments if name not in known
        ]
        problems += [
            f"{field.name!r} is missing"
            for field in offer.fields
            if field.default is None and field.name not in arguments
        ]
        return problems + misfits(offer.fields, arguments, offer.schemas, Checks(self._max_checks))

    def _content(self, name: str, arguments: Mapping[str, Json]) -> str:
        handler = self._registry.table.find_in_place(name)
        assert handler is not None
        written = handler.written(handler.call(dict(arguments)))
        if isinstance(written, WorkflowCall):
            raise RunnerRefused(
                "a tool of a model cannot continue with a workflow; call the workflow as a step"
            )
        codec.check_names(f"what {name} returned", written)
        value: Any = written["result"] if written.keys() == {"result"} else written
        codec.check_value(f"what {name} returned", value, *self._limits)
        shown = without_secrets(value)
        return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


@contextmanager
def _as_tool(step: StepContext, facet: str, number: int) -> Iterator[None]:
    """Give the call an idempotency key of its own: one step may call a tool twice."""
    inner = replace(step, facet=facet, idempotency_key=f"{step.idempotency_key}-{number}")
    token = logged_step.set(inner)
    try:
        yield
    finally:
        logged_step.reset(token)


def _offer(registry: ToolRegistry, plan: Plan, name: str, tool: str) -> _Offer:
    handler = registry.find(name)
    if isinstance(handler, EventFacet):
        fields = handler.definition.signature.fields()
        about = inspect.getdoc(handler.fn) or name
        return _made(name, tool, about, fields, {})
    callback = handler.callback if isinstance(handler, CallbackHandler) else None
    about = (inspect.getdoc(callback) if inspect.isroutine(callback) else None) or name
    declared = _declared(plan, name)
    if declared is not None:
        return _made(name, tool, about, declared.params, declared.schemas)
    return _Offer(name, None, {}, Tool(tool, about[:_LONGEST_ABOUT], {"type": "object"}))


def _made(name: str, tool: str, about: str, fields: tuple[Field, ...], schemas: Schemas) -> _Offer:
    schema = object_schema(fields, schemas)
    return _Offer(name, fields, schemas, Tool(tool, about[:_LONGEST_ABOUT], schema))


def _declared(plan: Plan, name: str) -> FacetPlan | None:
    """Return the event facet of that name, or the only one of that short name."""
    if (exact := plan.facets.get(name)) is not None:
        return exact
    short = [
        facet
        for facet in plan.facets.values()
        if facet.kind is FacetKind.EVENT and facet.short_name == name
    ]
    return short[0] if len(short) == 1 else None
