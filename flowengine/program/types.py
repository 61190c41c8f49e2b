"""Check values against declared types.

Null fits every type: AFL has no way to forbid it. The name of a schema requires a map with its
fields. ``Json`` and the name of a facet accept every value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowengine.errors import InvalidInputs
from flowengine.program.limits import DEFAULT_LIMITS, Limits, clipped
from flowengine.program.nodes import ArrayType, Field, Json, Schemas, Type
from flowengine.program.plan import FacetPlan
from flowengine.program.suggestions import Suggestions
from flowengine.program.validator import Checks, TooManyChecks, schema_misfit

_WHOLE = frozenset({"Long", "Int", "Integer"})
_NUMBER = frozenset({"Double", "Float", "Number"})
_TEXT = frozenset({"String", "Text"})
_TRUTH = frozenset({"Boolean", "Bool"})
#: The names of types that need no declaration: AFL's, and others for the same.
BUILT_IN = _WHOLE | _NUMBER | _TEXT | _TRUTH | {"Json", "Any"}
_UNCHECKED = frozenset({"Json", "Any"})
_NO_SCHEMAS: Schemas = {}


def misfit(
    declared: Type, value: Json, schemas: Schemas = _NO_SCHEMAS, checks: Checks | None = None
) -> str:
    """Return the reason why the value does not fit the type; empty when it does.

    Raises TooManyChecks at the limit of `checks`.
    """
    if value is None:
        return ""
    if isinstance(declared, ArrayType):
        if not isinstance(value, list):
            return f"expected a list, found {_name(value)}"
        if declared.element in _UNCHECKED:
            return ""
        checks = checks or Checks()
        checks.spend(len(value))
        inner = declared.element
        found = ((i, misfit(inner, item, schemas, checks)) for i, item in enumerate(value))
        return next((f"item {index}: {why}" for index, why in found if why), "")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if declared in _WHOLE:
        fits = is_number and value == value // 1
    elif declared in _NUMBER:
        fits = is_number
    elif declared in _TEXT:
        fits = isinstance(value, str)
    elif declared in _TRUTH:
        fits = isinstance(value, bool)
    elif declared in schemas:
        return _schema_misfit(declared, value, schemas, checks or Checks())
    else:
        fits = True
    return "" if fits else f"expected {declared}, found {_name(value)}"


def _schema_misfit(name: str, value: Json, schemas: Schemas, checks: Checks) -> str:
    if not isinstance(value, dict):
        return f"expected {name}, found {_name(value)}"
    checks.spend(len(schemas[name]))
    for field in schemas[name]:
        if field.name not in value and field.default is None:
            return f"expected {name}, which has {field.name!r}"
        if field.name in value and (why := field_misfit(field, value[field.name], schemas, checks)):
            return f"{field.name}: {why}"
    return ""


def field_misfit(
    field: Field, value: Json, schemas: Schemas = _NO_SCHEMAS, checks: Checks | None = None
) -> str:
    """Return the reason why the value does not fit the field's type and schema; else empty."""
    why = type_misfit(field, value, schemas, checks)
    if why or field.schema is None:
        return why
    return schema_misfit(field.schema, value, checks)


def null_misfit(field: Field, value: Json, checks: Checks | None = None) -> str:
    """Return why a null, or one in a list, does not fit the annotation of a Python function.

    Empty if it has none. An annotation that allows None has a schema.
    """
    if field.schema is not None:
        return ""
    try:
        return _null_misfit(field.type, value, checks or Checks())
    except TooManyChecks as limit:
        return str(limit)


def _null_misfit(declared: Type, value: Json, checks: Checks) -> str:
    if declared in _UNCHECKED:
        return ""
    if value is None:
        return f"expected {type_name(declared)}, found null"
    if not (isinstance(declared, ArrayType) and isinstance(value, list)):
        return ""
    if declared.element in _UNCHECKED:
        return ""
    checks.spend(len(value))
    found = ((at, _null_misfit(declared.element, item, checks)) for at, item in enumerate(value))
    return next((f"item {at}: {why}" for at, why in found if why), "")


def type_name(declared: Type) -> str:
    """Return a type as AFL writes it."""
    return f"[{type_name(declared.element)}]" if isinstance(declared, ArrayType) else declared


def type_misfit(
    field: Field, value: Json, schemas: Schemas = _NO_SCHEMAS, checks: Checks | None = None
) -> str:
    """Return the reason why the value does not fit the field's type; else empty."""
    try:
        return misfit(field.type, value, schemas, checks)
    except TooManyChecks as limit:
        return str(limit)
    except RecursionError:
        return "it is nested too deeply to be checked"


def untyped(field: Field) -> bool:
    """Whether every value is of the field's type."""
    return field.type in _UNCHECKED


def misfits(
    fields: Iterable[Field],
    values: Mapping[str, Json],
    schemas: Schemas = _NO_SCHEMAS,
    checks: Checks | None = None,
) -> list[str]:
    """Return the reason for each value that does not fit its field.

    With `checks`, one limit for all values; without, the default limit for each.
    """
    found = [
        (f, field_misfit(f, values[f.name], schemas, checks)) for f in fields if f.name in values
    ]
    return [f"{field.name!r}: {why}" for field, why in found if why]


def check_inputs(
    workflow: FacetPlan, inputs: Mapping[str, Json], limits: Limits = DEFAULT_LIMITS
) -> None:
    """Raise `InvalidInputs` with its first problems: unknown, missing or of another type."""
    most = limits.max_problems
    declared = {param.name: param for param in workflow.params}
    checks = Checks(limits.max_schema_checks, has_formats=True)
    wrong = misfits(workflow.params, inputs, workflow.schemas, checks)
    if inputs.keys() == declared.keys() and not wrong and not workflow.node.mixins:
        return  # as most starts do
    suggestions = Suggestions()
    unknown = [name for name in inputs if name not in declared]
    problems = [
        f"unknown input {clipped(name)!r}{suggestions.near(name, declared)} "
        f"(it takes: {clipped(', '.join(declared)) or 'nothing'})"
        for name in unknown[:most]
    ]
    problems += [
        f"input {param.name!r} is missing and has no default"
        for param in workflow.params
        if param.default is None and param.name not in {*inputs, *workflow.filled}
    ]
    problems += [
        f"input {name!r} is filled by the mixin of that name"
        for name in sorted(workflow.filled.intersection(inputs))
    ]
    problems += [f"input {problem}" for problem in wrong]
    if more := len(unknown[most:]) + len(problems[most:]):
        problems = [*problems[:most], f"and {more:,} more problems"]
    if problems:
        raise InvalidInputs(workflow.name, problems)


def _name(value: Json) -> str:
    match value:
        case bool():
            return "a truth value"
        case list():
            return "a list"
        case dict():
            return "a map"
    shown = repr(value)
    return shown if len(shown) < 60 else f"{shown[:57]}…"
