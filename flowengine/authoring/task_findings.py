"""The features of a Celery task that a step cannot carry over, each with its file and line.

Nothing of a task is dropped in silence: `event_facet(task)` warns, with ``strict=True`` it refuses
the task, and `flowengine check` lists the same findings.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

from flowengine.authoring.locations import location_of
from flowengine.authoring.source_names import FunctionTree, arguments_of, source_tree
from flowengine.program.nodes import Location

TaskFinding: TypeAlias = tuple[Location, str]

_REFUSED = {
    "replace": "self.replace fails the step, and publishes nothing: return the call of a workflow, "
    "as in `return flow.call(…)`",
    "add_to_chord": "self.add_to_chord fails the step: a step belongs to no chord; return the "
    "items, and let the workflow make a foreach of them",
}
#: Attributes of a request that describe a canvas, or a message.
_OF_MESSAGES = frozenset(
    {
        *("chord", "group", "group_index", "callbacks", "errbacks", "chain", "reply_to", "eta"),
        *("expires", "properties", "replaced_task_nesting", "stamps", "stamped_headers"),
    }
)
_OF_RESULTS = frozenset({"backend", "AsyncResult"})
_RETRY = frozenset({"exc", "throw", "eta", "countdown", "max_retries"})
_STANDARD_REQUEST = "celery.worker.request:Request"


def task_findings(task: Any, given: Collection[str] = ()) -> list[TaskFinding]:
    """Return all findings in source order; `given` are the options that the facet was given."""
    run = inspect.unwrap(task.run)
    function = getattr(run, "__func__", run)
    where = location_of(function)
    findings = [(where, what) for what in _of_options(task, given)]
    tree = source_tree(function)
    if tree is not None:
        for node, what in _of_source(task, tree):
            findings.append((Location(getattr(node, "lineno", where.line), file=where.file), what))
    return sorted(set(findings), key=lambda finding: (finding[0].line, finding[1]))


def _of_options(task: Any, given: Collection[str]) -> Iterator[str]:
    limit = getattr(task, "rate_limit", None)
    if limit and "rate" not in given:
        yield (
            f"rate_limit={limit!r} is a limit of each worker in Celery, and of the whole fleet as "
            "a step: confirm it or give another with rate=Rate(…); rate=None has none"
        )
    if not isinstance(getattr(task, "expires", None), int | float | None):
        yield "expires is a fixed time: a step knows only seconds after which it has expired"
    if getattr(task, "Request", _STANDARD_REQUEST) != _STANDARD_REQUEST:
        yield "its Request class is not used: a step has no message"
    for name in ("apply_async", "delay"):
        method = inspect.getattr_static(type(task), name, None)
        if not str(getattr(method, "__module__", "celery.")).startswith("celery."):
            yield f"its own {name} is not called for a step: nothing is published"


def _of_source(task: Any, tree: FunctionTree) -> Iterator[tuple[ast.AST, str]]:
    arguments = arguments_of(tree.args)
    names = {"current_task"}
    if inspect.ismethod(inspect.unwrap(task.run)) and arguments:
        names.add(arguments[0].arg)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="retry")) if (
                name in names
            ):
                yield from ((node, what) for what in _of_retry(task, node))
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in names:
                if attribute in _REFUSED:
                    yield node, _REFUSED[attribute]
                elif attribute in _OF_RESULTS:
                    yield (
                        node,
                        f"self.{attribute}: the result backend has nothing of a step; read the "
                        "run, as in Run.steps()",
                    )
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id=name), attr="request"), attr=attribute
            ) if name in names and attribute in _OF_MESSAGES:
                yield node, f"self.request.{attribute} is None: a step has no message and no canvas"


def _of_retry(task: Any, call: ast.Call) -> Iterator[str]:
    others = [word.arg or "**" for word in call.keywords if word.arg not in _RETRY]
    others += ["args", "kwargs"][: len(call.args)]
    if others:
        yield (
            f"self.retry({', '.join(f'{name}=…' for name in others)}) fails the step: another try "
            "has the arguments and the queue of the first one"
        )
    for word in call.keywords:
        value = word.value.value if isinstance(word.value, ast.Constant) else ...
        if word.arg == "throw" and value is not True:
            yield "self.retry(throw=False) retries only if the Retry that it returns is raised"
        most = task.max_retries
        is_own = isinstance(word.value, ast.Attribute) and word.value.attr == "max_retries"
        is_more = not isinstance(value, int) or (most is not None and value > most)
        is_more = is_more and value is not None and not is_own
        if word.arg == "max_retries" and most is not None and is_more:
            yield (
                f"max_retries of the call ends at max_retries={most} of the task: set the larger "
                "one on the task"
            )
