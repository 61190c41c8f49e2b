"""Read compositions of Celery signatures: chains, groups, chords, maps and chunks.

Celery decides here about everything that it decides when it publishes a canvas: which options of a
composition are those of its first task or of all, which groups are unrolled, to which task a link
belongs. An option that has no counterpart is a problem, and all of them are collected.
"""

from __future__ import annotations

import datetime
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from celery import Signature, chord, group
from celery.canvas import _chain, chunks
from celery.utils.functional import maybe_list
from celery.utils.time import maybe_iso8601, maybe_make_aware

from flowengine.authoring import event_facet_named
from flowengine.authoring.canvas import ChainPart, Errback, GroupPart, MapPart, Part, TaskPart
from flowengine.authoring.celery_tasks import run_priority
from flowengine.errors import Problem

_MAP, _STARMAP, _CHUNKS = "celery.map", "celery.starmap", "celery.chunks"
#: Options that concern messages and Celery's own bookkeeping, which a run has none of.
_OF_MESSAGES = frozenset(
    {
        *("reply_to", "root_id", "parent_id", "group_id", "group_index", "chord", "chain"),
        *("retry", "retry_policy", "serializer", "compression", "delivery_mode", "mandatory"),
        *("add_to_parent", "argsrepr", "kwargsrepr", "ignore_result", "route_name", "producer"),
        *("connection", "publisher", "interval", "max_retries", "propagate", "app", "shadow"),
        *("replaced_task_nesting", "use_link", "task_type", "origin"),
    }
)
#: Options that are read here, or belong to the start of the run.
_READ = frozenset({"countdown", "eta", "expires", "link", "link_error", "task_id", "priority"})
#: Options of a composition that its tasks get, in place of their own.
_PASSED_ON = ("countdown", "eta")

_IN_FACET = "give it to event_facet({task}, {cure}), for all its steps"
_CURES = {
    "queue": _IN_FACET.format(task="{task}", cure="task_list={value!r}"),
    "routing_key": _IN_FACET.format(task="{task}", cure="task_list=…"),
    "exchange": _IN_FACET.format(task="{task}", cure="task_list=…"),
    "time_limit": _IN_FACET.format(task="{task}", cure="timeout={value!r}"),
    "soft_time_limit": "declare it where the task is: @app.task(soft_time_limit={value!r})",
    "priority": "set it on the whole canvas, which is the priority of the run, or give it to "
    "event_facet({task}, priority=…)",
    "task_id": "a step has no id of its own, and its result is read from the run: set it on the "
    "whole canvas, where it is the key of the run",
    "expires": "the time at which a step expires is not known before the run: give it seconds, or "
    "set it on the whole canvas",
}


#: Positional and keyword arguments.
Given: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
NOTHING: Given = ((), {})


@dataclass
class CanvasReading:
    """A canvas as read, and the options that are those of its run."""

    part: Part
    key: str | None  #: the id that its author gave it
    expires: float | datetime.datetime | None  #: seconds after its start, or the moment
    priority: int
    problems: list[Problem] = field(default_factory=list)


def read_canvas(signature: Signature, app: Any, args: Given = NOTHING) -> CanvasReading:
    """Read a signature of this app; problems are collected, and never raised.

    `args` are further arguments of the tasks with which the canvas begins.
    """
    reader = _Reader(app)
    signature = signature if args == NOTHING else _given(signature, args)
    options = dict(signature.options)
    key, expires = options.pop("task_id", None), options.pop("expires", None)
    priority = reader.priority(options.pop("priority", None))
    part = reader.part(signature, "canvas", own=options, is_last=True)
    end = reader.end(expires)
    found = key if key is not None else reader.last_id
    return CanvasReading(part, found, end, priority, reader.problems)


class _Reader:
    def __init__(self, app: Any) -> None:
        self._app = app
        self.problems: list[Problem] = []
        self.last_id: str | None = None  #: of the last task, by which Celery names the canvas

    def part(
        self,
        given: Any,
        place: str,
        passed: Mapping[str, Any] | None = None,
        *,
        own: Mapping[str, Any] | None = None,
        is_last: bool = False,
    ) -> Part:
        """Read a signature; `passed` are options of the compositions around it."""
        signature = self._signature(given)
        if signature is None:
            self._refuse(place, f"{type(given).__name__} is no signature: write task.s(…)")
            return GroupPart((), place)
        options = {**(signature.options if own is None else own), **(passed or {})}
        if is_last and (own is None):
            self.last_id = options.pop("task_id", None) or self.last_id
        # Maps and chunks that were sent as messages have no class of their own any more.
        if signature.task in (_MAP, _STARMAP):
            return self._map(signature, options, place)
        if signature.task == _CHUNKS:
            parts = chunks.from_dict(dict(signature), app=self._app).group()
            return self.part(parts, f"{place}.chunks", passed, own=options)
        match signature:
            case group():
                return self._group(signature, options, place, is_last)
            case chord():
                return self._chord(signature, options, place, is_last)
            case _chain():
                return self._chain(signature, options, place, is_last)
        if signature.get("subtask_type"):
            kind = signature["subtask_type"]
            self._refuse(place, f"a signature of the kind {kind!r} is unknown: write a workflow")
        return self._task(signature, options, place)

    def _signature(self, given: Any) -> Signature | None:
        if isinstance(given, Signature):
            return given
        return Signature.from_dict(given, app=self._app) if isinstance(given, dict) else None

    # --- tasks ---

    def _task(self, signature: Signature, options: Mapping[str, Any], place: str) -> TaskPart:
        task, place = str(signature.task), f"{place} ({signature.task})"
        self._check_task(task, place)
        self._check_options(task, options, place)
        return TaskPart(
            task,
            tuple(signature.args),
            dict(signature.kwargs),
            immutable=bool(signature.immutable),
            countdown=self._countdown(options, place),
            eta=self._eta(options, place),
            expires=self._expires(options, place),
            links=tuple(self._links(options, place)),
            errbacks=tuple(self._errbacks(options, place)),
            place=place,
        )

    def _check_task(self, task: str, place: str) -> None:
        if task not in self._app.tasks:
            name = self._app.main or "the app"
            self._refuse(place, f"task {task!r} is not registered on the Celery app {name!r}")
            return
        facet = event_facet_named(task)
        adapted = None if facet is None else facet.celery_task
        is_made_of_it = adapted and _function(adapted.task) is _function(self._app.tasks[task])
        if facet is not None and not is_made_of_it:
            self._refuse(
                place,
                f"the event facet {task!r} was not made of the task of that name: give the facet "
                f"another name, and write `event_facet({task.rpartition('.')[2]})` below the task",
            )

    def _check_options(self, task: str, options: Mapping[str, Any], place: str) -> None:
        short = task.rpartition(".")[2]
        for name, value in options.items():
            if value is None or name in _OF_MESSAGES:
                continue
            if name in ("queue", "routing_key") and self._is_own_list(task, value):
                continue
            if name == "stamped_headers":
                continue
            if name in (options.get("stamped_headers") or ()):
                self._refuse(place, f"stamp {name!r} has no counterpart: use labels of the run")
            elif name in ("task_id", "priority") or name not in _READ:
                cure = _CURES.get(name, "leave it out, or write a workflow")
                shown = cure.format(task=short, value=getattr(value, "name", value))
                self._refuse(place, f"option {name!r} is not carried over: {shown}")

    def _is_own_list(self, task: str, queue: Any) -> bool:
        facet = event_facet_named(task)
        name = getattr(queue, "name", queue)
        return facet is not None and facet.definition.options.task_list == name

    def _countdown(self, options: Mapping[str, Any], place: str) -> float | None:
        given = options.get("countdown")
        try:
            return None if given is None else float(given)
        except (TypeError, ValueError):
            shown = reprlib.repr(given)
            self._refuse(place, f"option 'countdown' is {shown}: give it a number of seconds")
            return None

    def _eta(self, options: Mapping[str, Any], place: str) -> datetime.datetime | None:
        if options.get("countdown") is not None or options.get("eta") is None:
            return None  # as in Celery, the countdown is preferred
        return self._moment(options["eta"], "option 'eta'", place)

    def _moment(self, given: Any, what: str, place: str) -> datetime.datetime | None:
        try:
            parsed = maybe_make_aware(maybe_iso8601(given), self._app.timezone)
            found: datetime.datetime = parsed.astimezone(datetime.UTC)
        except (TypeError, ValueError, OverflowError):
            cure = "give it a datetime, or its text as '2031-05-01T12:00:00+00:00'"
            self._refuse(place, f"{what} is {reprlib.repr(given)}, which is no moment: {cure}")
            return None
        return found

    def _expires(self, options: Mapping[str, Any], place: str) -> float | None:
        given = options.get("expires")
        if given is None or isinstance(given, int | float):
            return given
        if isinstance(given, datetime.timedelta):
            return given.total_seconds()
        self._refuse(place, f"option 'expires': {_CURES['expires']}")
        return None

    def end(self, expires: Any) -> float | datetime.datetime | None:
        """Return when a canvas expires: seconds after its start, or the moment."""
        if expires is None:
            return None
        if isinstance(expires, int | float) and not isinstance(expires, bool):
            return float(expires)
        if isinstance(expires, datetime.timedelta):
            return expires.total_seconds()
        return self._moment(expires, "option 'expires'", "canvas")

    def priority(self, given: Any) -> int:
        """Return the priority of the run of a canvas."""
        if given is None or isinstance(given, int):
            return run_priority(given or 0, self._app)
        shown = reprlib.repr(given)
        self._refuse("canvas", f"option 'priority' is {shown}: give it a whole number")
        return 0

    def _links(self, options: Mapping[str, Any], place: str) -> Iterator[Part]:
        for number, link in enumerate(maybe_list(options.get("link")) or ()):
            yield self.part(link, f"{place}.link[{number}]")

    def _errbacks(self, options: Mapping[str, Any], place: str) -> Iterator[Errback]:
        for number, given in enumerate(maybe_list(options.get("link_error")) or ()):
            here = f"{place}.link_error[{number}]"
            signature = self._signature(given)
            if signature is None or signature.get("subtask_type"):
                self._refuse(here, "an errback is the signature of one task: write a workflow")
                continue
            task = str(signature.task)
            self._check_task(task, here)
            self._check_options(task, signature.options, here)
            if any(signature.options.get(name) is not None for name in _READ - {"task_id"}):
                self._refuse(here, "the options of an errback are not carried over: leave them out")
            given_args = tuple(signature.args), dict(signature.kwargs)
            yield Errback(task, *given_args, immutable=bool(signature.immutable), place=here)

    def _map(self, signature: Signature, options: Mapping[str, Any], place: str) -> Part:
        inner = self._signature(signature.kwargs["task"])
        task = str(signature.kwargs["task"] if inner is None else inner.task)
        here = f"{place} ({task})"
        self._check_task(task, here)
        self._check_options(task, options, here)
        if inner is not None and (inner.args or inner.kwargs):
            self._refuse(here, "the task of a map has arguments of its own, which Celery ignores")
        if any(options.get(name) is not None for name in _READ - {"link", "link_error"}):
            self._refuse(here, "a map carries no countdown, eta or expires: put it into a group")
        items = signature.kwargs["it"]
        is_star = signature.task == _STARMAP
        part = MapPart(task, tuple(tuple(i) if is_star else (i,) for i in items), here)
        links = tuple(self._links(options, here))
        errbacks = tuple(self._errbacks(options, here))
        return ChainPart((part,), links, errbacks, here) if links or errbacks else part

    # --- compositions ---

    def _chain(
        self, signature: Signature, options: dict[str, Any], place: str, is_last: bool
    ) -> Part:
        read = [
            each if (known := self._signature(each)) is None else known for each in signature.tasks
        ]
        given = _without_empty(read)
        if not given:
            self._refuse(place, "the chain is empty")
        self._check_composition(options, place)
        passed = _passed(options)  # as when a chain is published, its first task gets them
        parts = []
        for number, each in enumerate(given):
            task = _unrolled(self._signature(each))
            here = f"{place}.chain[{number}]"
            ends = is_last and number == len(given) - 1
            parts.append(self.part(task, here, passed if number == 0 else None, is_last=ends))
        links = tuple(self._links(options, place))
        return ChainPart(tuple(parts), links, tuple(self._errbacks(options, place)), place)

    def _group(
        self, signature: Signature, options: dict[str, Any], place: str, is_last: bool
    ) -> GroupPart:
        del is_last  # a group is named by its own id
        self._check_composition(options, place)
        members = [
            self.part(member, f"{place}.group[{number}]", _passed(options))
            for number, member in enumerate(self._members(signature.tasks))
        ]
        if options.get("link") or options.get("link_error"):
            self._refuse(place, "a group carries no link, as in Celery: link its tasks, or a chord")
        return GroupPart(tuple(members), place)

    def _chord(
        self, signature: Signature, options: dict[str, Any], place: str, is_last: bool
    ) -> Part:
        if signature.body is None:
            self._refuse(place, "the chord has no body: write a group, or chord(header, body)")
        self._check_composition(options, place)
        members = [
            self.part(member, f"{place}.header[{number}]", _passed(options))
            for number, member in enumerate(self._members(_header(signature)))
        ]
        parts: list[Part] = [GroupPart(tuple(members), f"{place}.header")]
        if signature.body is not None:
            parts.append(self.part(signature.body, f"{place}.body", is_last=is_last))
        links = tuple(self._links(options, place))
        return ChainPart(tuple(parts), links, tuple(self._errbacks(options, place)), place)

    def _members(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the tasks of a group; groups in it are unrolled, as Celery does."""
        for given in tasks:
            member = self._signature(given)
            if isinstance(member, group):
                yield from self._members(member.tasks)
            elif not (isinstance(member, _chain) and not member.tasks):
                yield given if member is None else member

    def _check_composition(self, options: Mapping[str, Any], place: str) -> None:
        kept = {name: value for name, value in options.items() if name not in _PASSED_ON}
        self._check_options("task", kept, place)
        if options.get("expires") is not None:
            self._refuse(place, "option 'expires': set it on the whole canvas, or on its tasks")

    def _refuse(self, place: str, what: str) -> None:
        self.problems.append(Problem(place, what))


def _function(task: Any) -> Any:
    """Return the code of a task: a shared one is another object in each app."""
    run = getattr(task, "_orig_run", task.run)  # Celery wraps `run` for autoretry
    return getattr(run, "__func__", run)


def app_of(signature: Any) -> Any:
    """Return the app of a canvas: that of its first task which knows one.

    Some compositions, and all that were sent as messages, forget it: Celery takes the current app
    of the thread then.
    """
    return _known_app(signature) or signature.app


def _known_app(signature: Any) -> Any:
    if not isinstance(signature, dict):
        return None
    task = getattr(signature, "_type", None)
    known = getattr(signature, "_app", None) or getattr(task, "app", None)
    if known is not None:
        return known
    inner = signature["kwargs"] if signature.get("subtask_type") else {}
    members = [inner.get(name) for name in ("tasks", "header", "body", "task")]
    for found in members:
        if isinstance(found, group):
            found = found.tasks
        for each in [found] if isinstance(found, dict) else list(found or ()):
            if (known := _known_app(each)) is not None:
                return known
    return None


def _given(signature: Any, given: Given) -> Any:
    """Return a copy of a signature whose first tasks have further arguments."""
    if isinstance(signature, dict) and not isinstance(signature, Signature):
        signature = Signature.from_dict(signature)
    match signature:
        case _chain():
            firsts = [_given(first, given) for first in signature.tasks[:1]]
            return _with_tasks(signature, [*firsts, *signature.tasks[1:]])
        case group():
            return _with_tasks(signature, [_given(each, given) for each in signature.tasks])
        case chord():
            header = [_given(each, given) for each in _header(signature)]
            copied = signature.clone()
            copied.kwargs["header"] = header
            return copied
    return signature.clone(*given)


def _header(signature: Any) -> list[Any]:
    """Return the tasks of a chord's header, which is a list, or a group once it was frozen."""
    tasks = signature.tasks
    return list(tasks.tasks if isinstance(tasks, group) else tasks)


def _with_tasks(signature: Any, tasks: list[Any]) -> Any:
    copied = signature.clone()
    copied.tasks = tasks
    return copied


def _passed(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _PASSED_ON if options.get(name) is not None}


def _is_empty(given: Any) -> bool:
    return isinstance(given, group) and not list(given.tasks)


def _without_empty(tasks: list[Any]) -> list[Any]:
    """Leave out empty groups, which Celery skips unless nothing else is there."""
    return [task for task in tasks if not _is_empty(task)] or tasks[:1]


def _unrolled(signature: Signature | None) -> Signature | None:
    """Return the member of a group of one, which a chain calls as a task."""
    if isinstance(signature, group):
        tasks = list(signature.tasks)
        if len(tasks) == 1:
            found: Signature = tasks[0]
            return found
    return signature
