"""Parse the options of event facets and of durable functions."""

from __future__ import annotations

from typing import Any

from flowengine.program import nodes
from flowengine.program.event_options import Cache, Limit, Rate, RetryPolicy
from flowengine.program.function_options import function_of, function_problems
from flowengine.program.json_reader import DocumentReader, kind_of
from flowengine.program.nodes import Json
from flowengine.program.option_checks import (
    cache_problems,
    limit_problems,
    priority_problems,
    retry_problems,
)


class OptionParser:
    """Parses the options of a facet."""

    def __init__(self, reader: DocumentReader) -> None:
        self._reader = reader

    def function(self, kind: nodes.FacetKind, name: str, child: Json) -> nodes.FunctionOptions:
        node = self._reader.mapping(child, "the options of a durable function")
        try:
            options = nodes.FunctionOptions(**node)
        except TypeError as problem:
            self._reader.problem(f"unreadable options of a durable function: {problem}")
            return nodes.FunctionOptions()
        for what in function_problems(options):
            self._reader.problem(what)
        if kind is not nodes.FacetKind.EVENT:
            self._reader.problem(f"a durable function is an EventFacetDecl, not a {kind.value}")
        elif function_of(name) != (name.rpartition("@")[0], options.version):
            self._reader.problem(
                f"the name of a durable function ends with its version: @{options.version}"
            )
        return options

    def options(self, child: Json) -> nodes.EventOptions:
        node = self._reader.mapping(child, "the options of an event facet")
        try:
            retry = nodes.RetryPolicy(**node.get("retry", {}))
            limit = tuple(Limit(**one) for one in self._reader.elements(node, "limit"))
            rate = tuple(Rate(**one) for one in self._reader.elements(node, "rate"))
            cache = Cache(**node["cache"]) if node.get("cache") is not None else None
            given = {**node, "retry": retry, "limit": limit, "rate": rate, "cache": cache}
            options = nodes.EventOptions(**given)
        except TypeError as problem:
            self._reader.problem(f"unreadable options: {problem}")
            return nodes.EventOptions()
        numbers: dict[str, Any] = {"max_losses": options.max_losses}
        numbers |= {} if options.timeout is None else {"timeout": options.timeout}
        numbers |= {name: getattr(retry, name) for name in ("first_wait", "factor", "max_wait")}
        for name, value in numbers.items():
            if not (_is_number(value) and value >= 0):
                self._reader.problem(f"option {name!r} must be a number of at least 0")
        if not _is_number(retry.attempts) or retry.attempts < 1:
            self._reader.problem("retry needs at least one attempt")
        checked = RetryPolicy(jitter=retry.jitter, on=retry.on, never_on=retry.never_on)
        unfit = (*retry_problems(checked), *limit_problems(limit, rate), *cache_problems(cache))
        for what in unfit:
            self._reader.problem(what)
        if not isinstance(options.task_list, str) or not options.task_list:
            self._reader.problem(
                f"option 'task_list' must be text, found {kind_of(options.task_list)}"
            )
        if not isinstance(options.breaker, str):
            self._reader.problem(f"option 'breaker' must be text, found {kind_of(options.breaker)}")
        for what in priority_problems(options.priority):
            self._reader.problem(what)
        if not isinstance(options.effects, bool):
            found = kind_of(options.effects)
            self._reader.problem(f"option 'effects' must be true or false, found {found}")
        return options


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
