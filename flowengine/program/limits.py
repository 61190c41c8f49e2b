"""Limits: those of the settings, as a value, and those of a program's texts and durations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Self

from flowengine.errors import InvalidProgram, Problem
from flowengine.printable import is_storable
from flowengine.program.nodes import FacetDeclaration, Json
from flowengine.settings import Settings

#: Characters of a breaker's name. The task's row holds it with a short prefix.
LONGEST_CIRCUIT = 200
_LONGEST = {"its name": 255, "task_list": 255, "breaker": LONGEST_CIRCUIT}


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings that limit programs and runs, for layers that read no settings."""

    max_computed_bytes: int
    max_json_depth: int
    max_program_bytes: int
    max_program_depth: int
    max_problems: int
    max_run_steps: int
    max_commit_steps: int
    max_commit_bytes: int
    max_run_bytes: int
    max_schema_checks: int
    max_expression_parts: int
    max_step_depth: int
    max_recursive_calls: int
    max_error_length: int
    max_error_excerpt: int
    cleanup_timeout: float
    priority_aging: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})


DEFAULT_LIMITS = Limits.of(Settings())
_MAX_PROBLEM_LENGTH = 1_000  # characters; names in it are the program's


def clipped(text: str, most: int = _MAX_PROBLEM_LENGTH) -> str:
    """Return a text of at most that many characters, which ends with the length it had."""
    if len(text) <= most:
        return text
    end = f"… ({len(text):,} characters)"
    return text[: max(most - len(end), 0)] + end


def listed(problems: Sequence[Problem], most: int) -> list[Problem]:
    """Return the first problems, and how many more there are."""
    found = [Problem(clipped(p.where), clipped(p.what)) for p in problems[:most]]
    if (more := len(problems) - most) > 0:
        found.append(Problem("", f"and {more:,} more problems (setting max_problems)"))
    return found


def program_too_large(size: int, most: int) -> InvalidProgram:
    what = (
        f"the program takes {size:,} bytes, the limit is {most:,} (setting max_program_bytes): "
        "pass data as inputs, repeat steps with a foreach, or split the program"
    )
    return InvalidProgram([Problem("", what)])


def check_document(document: Json, limits: Limits) -> None:
    """Refuse a document that is nested too deeply for the stacks of all processes of a fleet.

    Without recursion, and by a number: a document must not load in a starter with a shallow stack
    and fail in a worker.
    """
    depth = limits.max_program_depth
    if is_deeper(document, depth):
        what = (
            f"is nested too deeply: more than {depth} lists and maps inside each other, the limit "
            "(setting max_program_depth); give inner parts steps or facets of their own"
        )
        raise InvalidProgram([Problem(", ".join(_deep_names(document, depth)) or "it", what)])


def is_deeper(document: Json, depth: int) -> bool:
    """Whether there are more lists and maps inside each other."""
    level = [document]
    for _ in range(depth):
        level = [
            inner
            for part in level
            if isinstance(part, dict | list | tuple)
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
        if not level:
            return False
    return any(isinstance(part, dict | list | tuple) for part in level)


def _deep_names(document: Json, depth: int) -> Iterator[str]:
    """Return the names of the outer declarations and statements that are nested too deeply."""
    for _ in range(3 if isinstance(document, dict) else 0):
        depth -= 2  # a list, and the node in it
        lists = [v for v in document.values() if isinstance(v, list)]
        nodes = [node for each in lists for node in each if isinstance(node, dict)]
        named = (n for n in nodes if isinstance(n.get("name"), str) and is_deeper(n, depth))
        document = next(named, None)
        if document is None:
            return
        yield clipped(document["name"], 100)


def beyond_limits(name: str, facet: FacetDeclaration) -> Iterator[str]:
    """Return every value of a facet that is too large to be stored, with its limit."""
    options = facet.options
    texts = {"its name": name, "task_list": options.task_list, "breaker": options.breaker}
    for what, text in texts.items():
        if len(text) > _LONGEST[what]:
            yield f"{what} has {len(text)} characters, and may have {_LONGEST[what]}"
        if not is_storable(text):
            yield f"{what} has a character in it that no database stores: {text!r}"
