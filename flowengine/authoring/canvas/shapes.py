"""The shape of a canvas, and its constants.

Two canvases of one shape differ only in their constants, which become the inputs of a run. So an
order of a shop is one program, however many goods each customer takes: the members of a group that
have one shape are one loop over the list of their constants.
"""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby
from typing import Any, TypeAlias
from uuid import UUID

import pydantic

from flowengine.authoring.annotations import Annotation, mismatch
from flowengine.authoring.canvas.parts import (
    ChainPart,
    Errback,
    GroupPart,
    MapPart,
    Part,
    TaskPart,
)
from flowengine.authoring.facets import EventFacet
from flowengine.authoring.registry import event_facet_named
from flowengine.authoring.signatures import Signature
from flowengine.errors import AuthoringError, CanvasRefused, Problem, ValueRefused
from flowengine.program.deadlines import deadline_mixin, deadline_of
from flowengine.program.nodes import Json
from flowengine.program.wait_times import sleep_problem

#: Stands for the result of the part before, when arguments are bound to parameters.
_BEFORE = object()
#: Types that Celery's JSON keeps, and that are text in JSON unless an annotation reads them back.
_KEPT_BY_CELERY = (datetime.date, datetime.time, Decimal, UUID)


@dataclass(frozen=True)
class Step:
    """A step that calls an event facet. Each of its constants is one slot."""

    facet: str
    constants: tuple[str, ...]  #: parameters, in the order of their slots
    takes: str = ""  #: the parameter that takes the result before; empty: it is an order only
    sleeps: str = ""  #: "countdown" or "eta", which is its first slot
    expires: float | None = None


@dataclass(frozen=True)
class InTurn:
    """Shapes one after the other."""

    parts: tuple[Shape, ...]


@dataclass(frozen=True)
class Members:
    """Shapes side by side; the result is the list of their results."""

    parts: tuple[Shape, ...]
    runs: tuple[int, ...] = ()  #: places of parts that are several members, a loop over them


@dataclass(frozen=True)
class Each:
    """A shape for each item of a list, which is its one slot; the result is a list."""

    member: Shape
    slots: int  #: of the member
    one_by_one: bool = False


@dataclass(frozen=True)
class Linked:
    """A shape with others that get its result, and whose end changes nothing of it."""

    inner: Shape
    links: tuple[Shape, ...]


@dataclass(frozen=True)
class Watched:
    """A shape with steps that run when it has failed; it stays failed."""

    inner: Shape
    errbacks: tuple[Step, ...]


Shape: TypeAlias = Step | InTurn | Members | Each | Linked | Watched


@dataclass(frozen=True)
class Slot:
    """One constant: the name of its input, and its value."""

    name: str
    value: Json


Shaped: TypeAlias = tuple[Shape, list[Slot]]


def shape_of(part: Part, refused: Iterable[Problem] = ()) -> tuple[Shape, dict[str, Json]]:
    """Return the shape of a canvas and the inputs of its run.

    Raises CanvasRefused with every problem of the canvas, those given among them.
    """
    reader = _Reader()
    reader.problems.extend(refused)
    shape, slots = reader.shaped(part, has_before=False)
    if reader.problems:
        raise CanvasRefused(_merged(reader.problems))
    return shape, inputs_of(slots)


def inputs_of(slots: list[Slot]) -> dict[str, Json]:
    """Return the constants by unique names, which depend on the shape alone."""
    inputs: dict[str, Json] = {}
    numbers: dict[str, int] = {}
    for slot in slots:
        name = slot.name
        while name in inputs:
            numbers[slot.name] = numbers.get(slot.name, 1) + 1
            name = f"{slot.name}_{numbers[slot.name]}"
        inputs[name] = slot.value
    return inputs


def _merged(problems: list[Problem]) -> list[Problem]:
    """Return each problem once, with its first place: a group may have it thousands of times."""
    places: dict[str, list[str]] = {}
    for problem in problems:
        places.setdefault(problem.what, []).append(problem.where)
    return [
        Problem(where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1} more", what)
        for what, where in places.items()
    ]


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def shaped(self, part: Part, *, has_before: bool) -> Shaped:
        match part:
            case TaskPart():
                return self._task(part, has_before)
            case ChainPart():
                return self._chain(part, has_before)
            case GroupPart():
                return self._group(part, has_before)
            case MapPart():
                return self._map(part)

    # --- tasks ---

    def _task(self, part: TaskPart, has_before: bool) -> Shaped:
        takes_before = has_before and not part.immutable
        args = (_BEFORE, *part.args) if takes_before else part.args
        step, slots = self._call(part.task, args, part.kwargs, part.place)
        if part.countdown is not None or part.eta is not None:
            wait = self._wait(part)
            step = replace(step, sleeps=wait.name)
            slots = [replace(wait, name=_name(step, wait.name)), *slots]
        if part.expires is not None:
            if isinstance(problem := deadline_of(deadline_mixin(part.expires)), str):
                self._refuse(part.place, f"expires: {problem}")
            step = replace(step, expires=part.expires)
        return self._wrapped((step, slots), part.links, part.errbacks)

    def _wait(self, part: TaskPart) -> Slot:
        if part.countdown is None:
            assert part.eta is not None
            return Slot("eta", part.eta.isoformat())
        seconds = max(float(part.countdown), 0.0)
        if problem := sleep_problem(seconds):
            self._refuse(part.place, f"countdown: {problem}")
        return Slot("countdown", seconds)

    def _call(
        self, task: str, args: Sequence[Any], kwargs: Any, place: str
    ) -> tuple[Step, list[Slot]]:
        nothing = Step(task, ())
        facet, signature = self._facet(task, place)
        if facet is None or signature is None:
            return nothing, []
        given, problems = signature.bound(tuple(args), kwargs)
        first = " (the first argument is the result before it)" if _BEFORE in args else ""
        for problem in problems:
            self._refuse(place, f"{problem}{first}")
        takes, slots = "", []
        for parameter in signature.parameters:
            name = parameter.name
            if name not in given:
                continue
            if given[name] is _BEFORE:
                takes = name
                continue
            try:
                value = parameter.annotation.write(given[name], f"an argument of {task}", name)
            except pydantic.ValidationError as error:
                self._refuse(place, mismatch(name, parameter.annotation, given[name], error))
            except ValueRefused as error:
                self._refuse(place, str(error))
            else:
                if kind := _lost_type(parameter.annotation, given[name], value):
                    self._refuse(
                        place,
                        f"{name!r} has a {kind}, which the task would get as text: annotate the "
                        f"parameter where the task is, as in `{name}: {kind}`",
                    )
                slots.append((name, value))
        step = Step(facet.name, tuple(name for name, _ in slots), takes)
        return step, [Slot(_name(step, name), value) for name, value in slots]

    def _facet(self, task: str, place: str) -> tuple[EventFacet[..., Any] | None, Signature | None]:
        facet = event_facet_named(task)
        if facet is None:
            short = task.rpartition(".")[2]
            self._refuse(
                place,
                f"task {task!r} is not a step: write `event_facet({short})` below the task, in a "
                "module that the workers import too",
            )
            return None, None
        try:
            return facet, facet.definition.signature
        except AuthoringError as problem:
            self._refuse(place, str(problem))
            return facet, None

    def _wrapped(
        self, shaped: Shaped, links: Iterable[Part], errbacks: Iterable[Errback]
    ) -> Shaped:
        shape, slots = shaped
        found = [self.shaped(link, has_before=True) for link in links]
        if found:
            shape = Linked(shape, tuple(link for link, _ in found))
            slots = [*slots, *(slot for _, more in found for slot in more)]
        reports = [self._errback(errback) for errback in errbacks]
        if reports:
            shape = Watched(shape, tuple(report for report, _ in reports))
            slots = [*slots, *(slot for _, more in reports for slot in more)]
        return shape, slots

    def _errback(self, errback: Errback) -> tuple[Step, list[Slot]]:
        if errback.immutable:
            return self._call(errback.task, errback.args, errback.kwargs, errback.place)
        facet = event_facet_named(errback.task)
        if facet is not None and not facet.takes_failure:
            self._refuse(
                errback.place,
                f"errback {errback.task!r} takes the id of a message, which a run does not have: "
                "give it the parameters (request, exc, traceback), or make its signature immutable "
                "with .si(…)",
            )
            return Step(errback.task, ()), []
        return self._call(errback.task, (_BEFORE, *errback.args), errback.kwargs, errback.place)

    # --- compositions ---

    def _chain(self, part: ChainPart, has_before: bool) -> Shaped:
        shapes: list[Shape] = []
        slots: list[Slot] = []
        rest = deque(part.parts)
        while rest:
            first = rest.popleft()
            if isinstance(first, ChainPart) and not first.links and not first.errbacks:
                rest.extendleft(reversed(first.parts))
                continue
            body = rest[0] if rest else None
            if (
                isinstance(first, GroupPart)
                and isinstance(body, TaskPart | ChainPart)
                and body.errbacks
            ):
                # The errbacks of a chord's body are for its header, too.
                chord = ChainPart((first, replace(body, errbacks=())))
                rest.popleft()
                shape, more = self._wrapped(self._chain(chord, has_before), (), body.errbacks)
            else:
                shape, more = self.shaped(first, has_before=has_before)
            shapes.append(shape)
            slots += more
            has_before = True
        whole = shapes[0] if len(shapes) == 1 else InTurn(tuple(shapes))
        return self._wrapped((whole, slots), part.links, part.errbacks)

    def _group(self, part: GroupPart, has_before: bool) -> Shaped:
        members = [self.shaped(member, has_before=has_before) for member in part.members]
        pieces: list[Shape] = []
        slots: list[Slot] = []
        is_uniform = len({shape for shape, _ in members}) == 1
        runs = []
        for shape, run in groupby(members, key=lambda member: member[0]):
            alike = [each for _, each in run]
            if is_uniform or len(alike) > 1:
                runs.append(len(pieces))
                pieces.append(Each(shape, len(alike[0])))
                slots.append(_list_slot(shape, alike))
            else:
                pieces.append(shape)
                slots += alike[0]
        if is_uniform:
            return pieces[0], slots
        return Members(tuple(pieces), tuple(runs)), slots

    def _map(self, part: MapPart) -> Shaped:
        members = [self._call(part.task, items, {}, part.place) for items in part.items]
        if not members:
            self._facet(part.task, part.place)  # it must be a step, though nothing calls it
        shapes = {step for step, _ in members}
        if len(shapes) != 1:
            if members and not self.problems:
                self._refuse(part.place, "its items have different numbers of arguments")
            return Members(()), []
        (step,) = shapes
        alike = [slots for _, slots in members]
        return Each(step, len(alike[0]), one_by_one=True), [_list_slot(step, alike)]

    def _refuse(self, place: str, what: str) -> None:
        self.problems.append(Problem(place, what))


def _lost_type(annotation: Annotation, given: Any, written: Json) -> str:
    """Return the type of a constant that the task would get as text; empty if it gets all."""
    if next(_of_kept_types(given), None) is None:
        return ""
    validated = list(_of_kept_types(annotation.adapter.validator.validate_python(given)))
    if len(validated) <= sum(1 for _ in _of_kept_types(annotation.read(written))):
        return ""
    kind = type(validated[0])
    return f"{kind.__module__}.{kind.__qualname__}"


def _of_kept_types(value: Any) -> Iterator[Any]:
    """Yield the values in lists and maps whose types Celery's JSON keeps."""
    if isinstance(value, _KEPT_BY_CELERY):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _of_kept_types(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _of_kept_types(item)


def _list_slot(shape: Shape, members: list[list[Slot]]) -> Slot:
    """Return the constants of alike members as one slot: a list with an item for each."""
    values = [[slot.value for slot in slots] for slots in members]
    items = [each[0] if len(each) == 1 else each for each in values]
    return Slot(f"{_first(shape)}_items", items)


def _name(step: Step, parameter: str) -> str:
    return f"{_short(step)}_{parameter}"


def _short(step: Step) -> str:
    return step.facet.rpartition(".")[2]


def _first(shape: Shape) -> str:
    """Return the short name of the first facet in a shape."""
    match shape:
        case Step():
            return _short(shape)
        case InTurn(parts) | Members(parts):
            return _first(parts[0]) if parts else "no"
        case Each(member):
            return _first(member)
        case Linked(inner) | Watched(inner):
            return _first(inner)
