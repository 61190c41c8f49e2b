"""Validate values against JSON Schemas, within a bound of work that no value can exceed.

Schemas are checked when a program is loaded (`schemas`): here they are only applied. References are
resolved in the schema itself; there is nothing that could fetch one. Patterns are matched in linear
time. Every step of the validation is counted, and ends at the setting `max_schema_checks`:
references that double at each level would otherwise hold a worker for hours. The count depends on
schema and value alone, so that every process decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowengine.program.keywords import RULES, Misfit, shown
from flowengine.program.limits import DEFAULT_LIMITS, clipped
from flowengine.program.nodes import Json
from flowengine.program.patterns import matches, pattern_size
from flowengine.program.references import resolved

_MAX_DEPTH = 300  # schemas inside schemas: each takes two frames of Python's stack
_LONGEST_MESSAGE = 500

_PER_STATE = 50  # characters of a text, times states of a pattern, that cost as much as a check


class TooManyChecks(Exception):
    """A validation would exceed its limit."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.most = most

    def __str__(self) -> str:
        return (
            f"its validation takes more than {self.most:,} checks, which is the limit (setting "
            "max_schema_checks); simplify the schema or shorten the value"
        )


class Checks:
    """The checks that the validation of one value may still make."""

    __slots__ = ("_most", "has_formats", "is_lenient", "left")

    def __init__(
        self,
        most: int = DEFAULT_LIMITS.max_schema_checks,
        *,
        has_formats: bool = False,
        is_lenient: bool = False,
    ) -> None:
        """`has_formats`: texts with the format of a date or a time must be such.

        `is_lenient`: a map may name its fields otherwise than the schema does, whose names are
        aliases, and leave out those that are read-only, because they are computed of others.
        """
        self._most = self.left = most
        self.has_formats, self.is_lenient = has_formats, is_lenient

    def spend(self, checks: int) -> None:
        self.left -= checks
        if self.left < 0:
            raise TooManyChecks(self._most)

    @property
    def spent(self) -> int:
        return self._most - max(self.left, 0)


def schema_misfit(schema: Mapping[str, Json], value: Json, checks: Checks | None = None) -> str:
    """Return the reason why the value does not fit the schema; empty when it does.

    Never raises: a schema that cannot be applied is a reason, too.
    """
    try:
        problem = Validation(schema, checks or Checks()).check(schema, value)
    except TooManyChecks as limit:
        return str(limit)
    except RecursionError:
        return "it is nested too deeply to be validated"
    except Exception as error:
        return clipped(
            f"its schema cannot be applied: {type(error).__name__}: {error}", _LONGEST_MESSAGE
        )
    if problem is None:
        return ""
    if _has_secrets(schema):
        problem.what = "does not fit the schema, which has a secret: the value is not shown"
    return clipped(str(problem), _LONGEST_MESSAGE)


def _has_secrets(schema: Mapping[str, Json]) -> bool:
    """Whether values of a schema, or of a part of it, are not to be shown."""
    waiting: list[Json] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if part.get("writeOnly") is True:
                return True
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return False


class Validation:
    """One value and one schema."""

    __slots__ = ("_depth", "_references", "_root", "has_formats", "is_lenient", "spend")

    def __init__(self, root: Mapping[str, Any], checks: Checks) -> None:
        self._root, self._depth, self.spend = root, 0, checks.spend
        self._references: dict[str, Any] = {}
        self.has_formats, self.is_lenient = checks.has_formats, checks.is_lenient

    def check(self, schema: Any, value: Any) -> Misfit | None:
        if schema is True:
            return None
        if schema is False:
            return Misfit(f"False schema does not allow {shown(value)}")
        if self._depth >= _MAX_DEPTH:
            raise RecursionError
        self._depth += 1
        self.spend(1 + len(schema))
        for keyword, wanted in schema.items():
            rule = RULES.get(keyword)
            if rule is not None and (problem := rule(self, wanted, value, schema)) is not None:
                break
        else:
            problem = None
        self._depth -= 1
        return problem

    def fits(self, schema: Any, value: Any) -> bool:
        self.spend(1)
        return self.check(schema, value) is None

    def each(self, schema: Any, parts: Iterator[tuple[Any, Any]]) -> Misfit | None:
        """Check parts of a value, given with their names, against one schema."""
        if schema is True:
            return None
        for name, part in parts:
            if (problem := self.check(schema, part)) is not None:
                return problem.at(name)
        return None

    def reference(self, reference: str) -> Any:
        found = self._references.get(reference)
        if found is None:
            found = self._references[reference] = resolved(self._root, reference)
        if not isinstance(found, bool | Mapping):
            raise LookupError(f"there is no schema at {reference[:80]!r}, and nothing is fetched")
        return found

    def matches(self, pattern: str, text: str) -> bool:
        self.spend(1 + len(text) * pattern_size(pattern) // _PER_STATE)
        return matches(pattern, text)

    def equal(self, one: Any, other: Any) -> bool:
        self.spend(1)
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(self.equal, one, other))
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(
                self.equal(v, other[k]) for k, v in one.items()
            )
        # Python holds True == 1; in JSON they are different values.
        return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)

    def hashable(self, value: Any) -> Any:
        """Return a form that is equal for equal values."""
        self.spend(1)
        if isinstance(value, list):
            return list, tuple(map(self.hashable, value))
        if isinstance(value, dict):
            return dict, frozenset((name, self.hashable(part)) for name, part in value.items())
        return isinstance(value, bool), value
