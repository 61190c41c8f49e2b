"""The keywords of JSON Schema: each a rule that returns the misfit of a value, or None."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from flowengine.program.formats import format_misfit

if TYPE_CHECKING:
    from flowengine.program.validator import Validation

_LARGEST_SHOWN = 20  # parts of a value that a message contains
_PER_NAME = 8  # names whose look-up costs as much as a check

Rule = Callable[["Validation", Any, Any, Mapping[str, Any]], "Misfit | None"]


class Misfit:
    """A reason, and the place in the value, innermost part first."""

    __slots__ = ("place", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.place: list[str | int] = []

    def at(self, part: str | int) -> Misfit:
        self.place.append(part)
        return self

    def __str__(self) -> str:
        parts = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in reversed(self.place))
        place = "".join(parts).removeprefix(".")
        return f"{place}: {self.what}" if place else self.what


def shown(value: Any) -> str:
    """Return a value for a message, at a cost that does not follow its size."""
    if isinstance(value, list | dict):
        if len(value) <= _LARGEST_SHOWN and not any(
            isinstance(part, list | dict) or (isinstance(part, str) and len(part) > 100)
            for part in (value.values() if isinstance(value, dict) else value)
        ):
            return repr(value)
        return f"the {'map' if isinstance(value, dict) else 'list'} of {len(value)}"
    return repr(value) if not isinstance(value, str) else repr(value[:300])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and (isinstance(value, int) or value.is_integer()),
    "null": lambda value: value is None,
    "number": _is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def _type(_: Validation, wanted: Any, value: Any, __: Any) -> Misfit | None:
    names = [wanted] if isinstance(wanted, str) else wanted
    if any(_TYPES[name](value) for name in names):
        return None
    return Misfit(f"{shown(value)} is not of type {', '.join(map(repr, names))}")


def _bound(fits: Callable[[Any, Any], bool], what: str) -> Rule:
    def rule(_: Validation, wanted: Any, value: Any, __: Any) -> Misfit | None:
        if not _is_number(value) or fits(value, wanted):
            return None
        return Misfit(f"{shown(value)} is {what} {wanted!r}")

    return rule


def _size(kind: type[Any], fits: Callable[[int, Any], bool], what: str) -> Rule:
    def rule(_: Validation, wanted: Any, value: Any, __: Any) -> Misfit | None:
        if not isinstance(value, kind) or fits(len(value), wanted):
            return None
        return Misfit(f"{shown(value)} {what}")

    return rule


def _multiple_of(_: Validation, wanted: Any, value: Any, __: Any) -> Misfit | None:
    if not _is_number(value):
        return None
    if isinstance(wanted, int):
        is_multiple = value % wanted == 0
    else:
        try:
            quotient = value / wanted
            is_multiple = int(quotient) == quotient
        except OverflowError:
            is_multiple = (Fraction(value) / Fraction(wanted)).denominator == 1
    return None if is_multiple else Misfit(f"{shown(value)} is not a multiple of {wanted}")


def _pattern(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not isinstance(value, str) or check.matches(wanted, value):
        return None
    return Misfit(f"{shown(value)} does not match {wanted!r}")


def _format(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    is_checked = check.has_formats and isinstance(value, str)
    problem = format_misfit(wanted, value) if is_checked else ""
    return Misfit(problem) if problem else None


def _const(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    return None if check.equal(value, wanted) else Misfit(f"{shown(wanted)} was expected")


def _enum(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if any(check.equal(value, one) for one in wanted):
        return None
    return Misfit(f"{shown(value)} is not one of {shown(wanted)}")


def _properties(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not isinstance(value, dict):
        return None
    check.spend(len(wanted) // _PER_NAME)
    for name, schema in wanted.items():
        if name in value and (problem := check.check(schema, value[name])) is not None:
            return problem.at(name)
    return None


def _pattern_properties(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not isinstance(value, dict):
        return None
    for pattern, schema in wanted.items():
        named = ((name, part) for name, part in value.items() if check.matches(pattern, name))
        if (problem := check.each(schema, named)) is not None:
            return problem
    return None


def _additional_properties(
    check: Validation, wanted: Any, value: Any, schema: Mapping[str, Any]
) -> Misfit | None:
    if not isinstance(value, dict) or wanted is True:
        return None
    named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    check.spend(len(value))
    extra = [
        name
        for name in value
        if name not in named and not any(check.matches(pattern, name) for pattern in patterns)
    ]
    if wanted is False and extra and not check.is_lenient:
        names = ", ".join(repr(name[:100]) for name in extra[:5])
        verb = "was" if len(extra) == 1 else "were"
        return Misfit(f"Additional properties are not allowed ({names} {verb} unexpected)")
    if wanted is False:
        return None
    return check.each(wanted, ((name, value[name]) for name in extra))


def _property_names(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not isinstance(value, dict):
        return None
    check.spend(len(value))
    problems = (check.check(wanted, name) for name in value)
    return next((problem for problem in problems if problem is not None), None)


def _required(
    check: Validation, wanted: Any, value: Any, schema: Mapping[str, Any]
) -> Misfit | None:
    if not isinstance(value, dict):
        return None
    check.spend(len(wanted) // _PER_NAME)
    if check.is_lenient:
        known = schema.get("properties", {})
        if not value.keys() <= known.keys():
            return None
        wanted = [name for name in wanted if not _is_read_only(known.get(name))]
    missing = next((name for name in wanted if name not in value), None)
    return None if missing is None else Misfit(f"{missing!r} is a required property")


def _is_read_only(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("readOnly") is True


def _dependent_required(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not isinstance(value, dict):
        return None
    for name, others in wanted.items():
        check.spend(1 + len(others) // _PER_NAME)
        if name in value and (missing := [other for other in others if other not in value]):
            return Misfit(f"{missing[0]!r} is a dependency of {name!r}")
    return None


def _dependent_schemas(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not isinstance(value, dict):
        return None
    check.spend(len(wanted) // _PER_NAME)
    return _all_of(check, [inner for name, inner in wanted.items() if name in value], value, _)


def _items(check: Validation, wanted: Any, value: Any, schema: Any) -> Misfit | None:
    if not isinstance(value, list):
        return None
    first = len(schema.get("prefixItems", ()))
    return check.each(wanted, ((at, value[at]) for at in range(first, len(value))))


def _prefix_items(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not isinstance(value, list):
        return None
    for at, (schema, part) in enumerate(zip(wanted, value, strict=False)):
        if (problem := check.check(schema, part)) is not None:
            return problem.at(at)
    return None


def _contains(check: Validation, wanted: Any, value: Any, schema: Any) -> Misfit | None:
    if not isinstance(value, list):
        return None
    found = sum(1 for part in value if check.fits(wanted, part))
    if found < schema.get("minContains", 1):
        return Misfit(f"{shown(value)} does not contain enough items matching the given schema")
    if found > schema.get("maxContains", found):
        return Misfit(f"{shown(value)} contains too many items matching the given schema")
    return None


def _unique_items(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not wanted or not isinstance(value, list):
        return None
    if len({check.hashable(part) for part in value}) == len(value):
        return None
    return Misfit(f"{shown(value)} has non-unique elements")


def _all_of(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    problems = (check.check(schema, value) for schema in wanted)
    return next((problem for problem in problems if problem is not None), None)


def _any_of(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if any(check.fits(schema, value) for schema in wanted):
        return None
    return Misfit(f"{shown(value)} is not valid under any of the given schemas")


def _one_of(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    number = sum(1 for schema in wanted if check.fits(schema, value))
    if number == 1 or (number and check.is_lenient):
        return None
    how = "any" if number == 0 else "only one"
    return Misfit(f"{shown(value)} is not valid under {how} of the given schemas")


def _not(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    if not check.fits(wanted, value):
        return None
    return Misfit(f"{shown(value)} should not be valid under the schema of `not`")


def _if(check: Validation, wanted: Any, value: Any, schema: Any) -> Misfit | None:
    branch = "then" if check.fits(wanted, value) else "else"
    return check.check(schema.get(branch, True), value)


def _ref(check: Validation, wanted: Any, value: Any, _: Any) -> Misfit | None:
    check.spend(4)
    return check.check(check.reference(wanted), value)


RULES: dict[str, Rule] = {
    "$ref": _ref,
    "additionalProperties": _additional_properties,
    "allOf": _all_of,
    "anyOf": _any_of,
    "const": _const,
    "contains": _contains,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "enum": _enum,
    "exclusiveMaximum": _bound(lambda n, limit: n < limit, "not less than"),
    "exclusiveMinimum": _bound(lambda n, limit: n > limit, "not greater than"),
    "format": _format,
    "if": _if,
    "items": _items,
    "maxItems": _size(list, lambda n, limit: n <= limit, "is too long"),
    "maxLength": _size(str, lambda n, limit: n <= limit, "is too long"),
    "maxProperties": _size(dict, lambda n, limit: n <= limit, "has too many properties"),
    "maximum": _bound(lambda n, limit: n <= limit, "greater than the maximum of"),
    "minItems": _size(list, lambda n, limit: n >= limit, "is too short"),
    "minLength": _size(str, lambda n, limit: n >= limit, "is too short"),
    "minProperties": _size(dict, lambda n, limit: n >= limit, "does not have enough properties"),
    "minimum": _bound(lambda n, limit: n >= limit, "less than the minimum of"),
    "multipleOf": _multiple_of,
    "not": _not,
    "oneOf": _one_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "prefixItems": _prefix_items,
    "properties": _properties,
    "propertyNames": _property_names,
    "required": _required,
    "type": _type,
    "uniqueItems": _unique_items,
}
