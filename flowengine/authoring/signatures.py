"""Bind arguments to the parameters of a decorated function, and convert them to JSON."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pydantic

from flowengine.authoring.annotations import Annotation, mismatch
from flowengine.errors import AuthoringError, InvalidInputs, ValueRefused
from flowengine.program.nodes import Field, Json, Literal
from flowengine.program.standard import RESULT

_NONE = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """One parameter, with its default as Python and as JSON."""

    name: str
    kind: Any  #: of inspect.Parameter
    annotation: Annotation
    default: Literal | None = None  #: None: required


@dataclass(frozen=True)
class Signature:
    """The parameters and the result of one function."""

    parameters: tuple[Parameter, ...]
    result: Annotation

    @cached_property
    def _by_place(self) -> list[str]:
        keyword = inspect.Parameter.KEYWORD_ONLY
        return [p.name for p in self.parameters if p.kind is not keyword]

    @cached_property
    def _by_name(self) -> list[str]:
        positional = inspect.Parameter.POSITIONAL_ONLY
        return [p.name for p in self.parameters if p.kind is not positional]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(p.name for p in self.parameters)

    def fields(self) -> tuple[Field, ...]:
        """Return the parameters as fields of the program."""
        return tuple(
            Field(p.name, p.annotation.type, p.default, p.annotation.schema)
            for p in self.parameters
        )

    def returns(self) -> tuple[Field, ...]:
        """Return the result as a field of the program."""
        return (Field(RESULT, self.result.type, schema=self.result.schema),)

    def bound(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the arguments by parameter name, in declared order, and all problems.

        Python's own binding stops at the first problem.
        """
        by_place = self._by_place
        given = dict(zip(by_place, args, strict=False))
        if not kwargs and len(args) == len(by_place) == len(self.parameters):
            return given, []
        by_name = self._by_name
        problems = []
        if len(args) > len(by_place):
            problems.append(f"{len(args)} positional values were given, it takes {len(by_place)}")
        for name, value in kwargs.items():
            if name not in by_name:
                problems.append(f"{name!r} is unknown, it takes {', '.join(by_name) or 'nothing'}")
            elif name in given:
                problems.append(f"{name!r} was given twice")
            else:
                given[name] = value
        for p in self.parameters:
            if p.default is None and p.name not in given:
                problems.append(f"{p.name!r} ({p.annotation}) is missing")
        return {p.name: given[p.name] for p in self.parameters if p.name in given}, problems

    def written(self, given: Mapping[str, Any], what: str) -> tuple[dict[str, Json], list[str]]:
        """Return arguments and defaults as JSON, and all problems."""
        inputs: dict[str, Json] = {}
        problems = []
        for p in self.parameters:
            if p.name in given:
                try:
                    inputs[p.name] = p.annotation.write(given[p.name], what, p.name)
                except pydantic.ValidationError as error:
                    problems.append(mismatch(p.name, p.annotation, given[p.name], error))
            elif p.default is not None:
                inputs[p.name] = p.default.value
        return inputs, problems

    def received(self, workflow: str, data: Mapping[str, Json]) -> dict[str, Any]:
        """Return the arguments of a start that another program sent as JSON.

        Values with stored forms, as bytes, are read; the start validates the others. Raises
        InvalidInputs.
        """
        found, problems = dict(data), []
        for p in self.parameters:
            if p.annotation.has_forms and p.name in data:
                try:
                    found[p.name] = p.annotation.receive(data[p.name])
                except pydantic.ValidationError as error:
                    problems.append(mismatch(p.name, p.annotation, data[p.name], error))
                except (TypeError, RecursionError):
                    pass  # no JSON: validated as a Python value by the start
        if problems:
            raise InvalidInputs(workflow, problems)
        return found

    def read(self, data: Mapping[str, Json]) -> tuple[tuple[list[Any], dict[str, Any]], list[str]]:
        """Return the Python call for stored arguments, and all problems."""
        problems = []
        if not self._names.issuperset(data):
            problems = [f"{name!r} is unknown" for name in data if name not in self._names]
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for p in self.parameters:
            if p.name not in data and p.default is None:
                problems.append(f"{p.name!r} ({p.annotation}) is missing")
                continue
            # Deserialize a default too: the function gets a new value for each call, equal
            # to one that the program passes.
            stored = data[p.name] if p.name in data else typing.cast(Literal, p.default).value
            try:
                value = p.annotation.read(stored)
            except pydantic.ValidationError as error:
                problems.append(mismatch(p.name, p.annotation, stored, error))
                continue
            if p.kind is inspect.Parameter.POSITIONAL_ONLY:
                args.append(value)
            else:
                kwargs[p.name] = value
        return (args, kwargs), problems


def starred_parameters(fn: Callable[..., Any]) -> list[str]:
    """Return the ``*args`` and ``**kwargs`` of a function, which programs do not support."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(fn).parameters.values()
    return [stars[p.kind] + p.name for p in parameters if p.kind in stars]


def signature_of(fn: Callable[..., Any], title: str) -> Signature:
    """Read a function's parameters and annotations; `title` names it in an error."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(fn), include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise AuthoringError(
            f"{title}: an annotation cannot be read ({error}); "
            "it must use names that its module imports or defines at the top level"
        ) from error
    parameters = tuple(
        _parameter(p, hints.get(p.name, _NONE), title)
        for p in inspect.signature(fn).parameters.values()
    )
    result = hints.get("return", _NONE)
    # get_type_hints turns `-> None` into NoneType, which pydantic accepts.
    return Signature(parameters, _annotation(result, "serialization", "the return", title))


def _parameter(parameter: inspect.Parameter, hint: Any, title: str) -> Parameter:
    what = f"parameter {parameter.name!r}"
    annotation = _annotation(hint, "validation", what, title)
    if parameter.default is _NONE:
        return Parameter(parameter.name, parameter.kind, annotation)
    try:
        name, subject = parameter.name, f"the default of {what}"
        value = annotation.write(parameter.default, subject, name, in_program=True)
    except ValueRefused as error:
        raise AuthoringError(f"{title}: {error}") from None
    except pydantic.ValidationError as error:
        problem = mismatch(parameter.name, annotation, parameter.default, error)
        raise AuthoringError(f"{title}: the default does not fit: {problem}") from None
    return Parameter(parameter.name, parameter.kind, annotation, Literal(value))


def _annotation(
    hint: Any, mode: typing.Literal["validation", "serialization"], what: str, title: str
) -> Annotation:
    try:
        return Annotation.of(hint, mode)
    except (pydantic.errors.PydanticUserError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise AuthoringError(
            f"{title}: the annotation of {what} is not a type that pydantic can validate "
            f"({reason}); use a dataclass or a pydantic model, or write the data to a file or an "
            "object store and pass its address: flowengine stores JSON, and does not pickle"
        ) from None
