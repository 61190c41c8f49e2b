"""Validate values against JSON Schemas, within a bound of work that no value can exceed.

Schemas are checked when a program is loaded (`schemas`): here they are only applied. References are
resolved in the schema itself; there is nothing that could fetch one. Patterns are matched in linear
time. Every step of the validation is counted, and one of more than `MAX_CHECKS` ends: references
that double at each level would otherwise hold a worker for hours. The count depends on schema and
value alone, so that every process decides the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flowengine.program.keywords import RULES, Misfit, shown
from flowengine.program.limits import clipped
from flowengine.program.nodes import Json
from flowengine.program.patterns import matches, pattern_size
from flowengine.program.references import resolved

#: Checks of one value: some seconds.
MAX_CHECKS = 2_000_000
_MAX_DEPTH = 300  # schemas inside schemas: each takes two frames of Python's stack
_LONGEST_MESSAGE = 500

_PER_STATE = 50  # characters of a text, times states of a pattern, that cost as much as a check


class _TooManyChecks(Exception):
    pass


def schema_misfit(schema: Mapping[str, Json], value: Json) -> str:
    """Return the reason why the value does not fit the schema; empty when it does.

    Never raises: a schema that cannot be applied is a reason, too.
    """
    try:
        problem = Validation(schema).check(schema, value)
    except _TooManyChecks:
        return f"its validation takes more than {MAX_CHECKS:,} checks; simplify the schema"
    except RecursionError:
        return "it is nested too deeply to be validated"
    except Exception as error:
        return clipped(
            f"its schema cannot be applied: {type(error).__name__}: {error}", _LONGEST_MESSAGE
        )
    return "" if problem is None else clipped(str(problem), _LONGEST_MESSAGE)


class Validation:
    """One value and one schema."""

    __slots__ = ("_depth", "_left", "_references", "_root")

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left, self._depth = root, MAX_CHECKS, 0
        self._references: dict[str, Any] = {}

    def spend(self, checks: int) -> None:
        self._left -= checks
        if self._left < 0:
            raise _TooManyChecks

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
