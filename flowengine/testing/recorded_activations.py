"""Activations that were run ahead, rebuilt from the history and the rows of their calls.

The report of such an activation is part of the commit that ends a call, and has no task. The
history has the numbers of its calls; their rows have the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flowengine.evaluator import Step
from flowengine.evaluator.call_statements import call_from_json, call_key
from flowengine.evaluator.triggers import ActivationEnded, Failed, RanAhead, Succeeded
from flowengine.program.function_calls import FunctionCall


class Unrecorded(Exception):
    """The export does not have an input of a commit."""


#: The end of a function that an activation without a task reported, from its row.
_END: dict[str, Callable[[Step], Succeeded | Failed | None]] = {
    "": lambda _: None,
    "result": lambda function: Succeeded(function.returns),
    "error": lambda function: Failed(function.error or {}, retry=False),
}


def ran_ahead(recorded: Mapping[str, Any], known: Mapping[str, Step]) -> Iterator[RanAhead]:
    """Yield the activations without a task of a commit; `known` are the exported rows by key."""
    for key, number, numbers, heard, cancelled, ended, seen in recorded.get("ahead", ()):
        function = known.get(key)
        keys = [] if function is None else [call_key(function.path, one) for one in numbers]
        if function is None or not known.keys() >= set(keys):
            raise Unrecorded(f"the export lacks the calls of the function {key}")
        if ended == "error" and function.error is None:
            raise Unrecorded(f"the export lacks the error of {function.path}")
        report = ActivationEnded(
            calls=tuple(_call(function, known[one]) for one in keys),
            heard=tuple(heard),
            cancelled=tuple(cancelled),
            ended=_END[ended](function),
            seen=seen,
        )
        yield RanAhead(function.id, key, number, report)


def _call(function: Step, row: Step) -> FunctionCall:
    name = row.path.removeprefix(f"{function.path}.").rpartition("#")[0]
    about = {"statement": row.address, "arguments": row.params, "digest": row.digest}
    return call_from_json({"number": row.index, "name": name, "heard": row.heard, **about})
