"""A program with values, a size or problems beyond a limit is refused when it is loaded."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest

from flowengine.errors import InvalidInputs, InvalidProgram
from flowengine.program import link_program, parse_program
from flowengine.program.limits import DEFAULT_LIMITS
from flowengine.program.nodes import EventOptions, RetryPolicy
from flowengine.program.types import check_inputs
from tests.builders import block, event, namespace, step, to, workflow
from tests.builders import program as document
from tests.integration.engines import event_facet, one, program


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (EventOptions(task_list="l" * 256), "task_list has 256 characters, and may have 255"),
        (EventOptions(task_list="a\0b"), "task_list has a character in it"),
        (EventOptions(task_list="a\ud800"), "task_list has a character in it"),
        (EventOptions(breaker="b" * 201), "breaker has 201 characters, and may have 200"),
        (EventOptions(timeout=math.inf), "timeout is inf, and"),
        (EventOptions(timeout=1e17), "timeout is 1e\\+17, and may be at most 3,153,600,000"),
        (EventOptions(retry=RetryPolicy(attempts=2, max_wait=math.inf)), "retry.max_wait is inf"),
        (EventOptions(retry=RetryPolicy(attempts=2, first_wait=1e12)), "retry.first_wait is 1e"),
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: EventOptions, problem: str) -> None:
    with pytest.raises(InvalidProgram, match=problem):
        link_program(one(options))


def test_a_name_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(InvalidProgram, match="its name has 302 characters, and may have 255"):
        link_program(program(event_facet("W" * 300)))


def test_values_of_the_longest_allowed_length_are_accepted() -> None:
    longest = EventOptions(task_list="l" * 255, breaker="b" * 200, timeout=3.1536e9)
    assert link_program(one(longest)).facets["t.Work"].node.options == longest


# --- size and depth of a program ---


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return workflow("W", "", "y", block(yields=[to("W", y=value)]))


def test_a_program_that_is_nested_too_deeply_is_refused_with_its_limit_and_its_place() -> None:
    parse_program(document(nested(190)))
    with pytest.raises(InvalidProgram, match=r"W: is nested too deeply.*400.*max_program_depth"):
        parse_program(document(nested(400)))
    limits = replace(DEFAULT_LIMITS, max_program_depth=30)
    with pytest.raises(InvalidProgram, match="a, W: is nested too deeply: more than 30"):
        parse_program(document(namespace("a", nested(30))), limits)


# --- problems and hints ---


def misspelt(count: int) -> Any:
    known = [event(f"shop.Facet{n}", "x", "y") for n in range(count)]
    calls = [step(f"s{n}", f"shop.Facte{n}", x=1) for n in range(count)]
    return document(*known, workflow("W", "", "", block(*calls)))


def test_the_error_of_a_program_lists_a_limited_number_of_problems() -> None:
    with pytest.raises(InvalidProgram) as caught:
        link_program(parse_program(misspelt(150)))
    problems = [str(problem) for problem in caught.value.problems]
    assert len(problems) == 101
    assert problems[-1] == "and 50 more problems (setting max_problems)"
    assert "did you mean 'shop.Facet0'?" in problems[0]
    limits = replace(DEFAULT_LIMITS, max_problems=3)
    with pytest.raises(InvalidProgram) as caught:
        link_program(parse_program(misspelt(20)), limits=limits)
    assert len(caught.value.problems) == 4


def test_hints_for_many_misspelt_names_take_bounded_time() -> None:
    program = parse_program(misspelt(2_000))
    began = time.process_time()
    with pytest.raises(InvalidProgram):
        link_program(program)
    assert time.process_time() - began < 5


def test_a_name_of_a_million_characters_is_compared_with_nothing_and_clipped() -> None:
    names = ["x" * 1_000_000 + str(n) for n in range(3)]
    calls = block(*(step(f"s{n}", name, x=1) for n, name in enumerate(names)))
    known = event("y" * 200, "x", "y")
    began = time.process_time()
    with pytest.raises(InvalidProgram) as caught:
        link_program(parse_program(document(known, workflow("W", "", "", calls))))
    assert time.process_time() - began < 5
    assert len(str(caught.value)) < 10_000


def test_unknown_inputs_are_listed_up_to_the_limit() -> None:
    plan = link_program(parse_program(document(workflow("W", "number", "", block()))))
    inputs = {f"nmber{n}": 1 for n in range(5_000)}
    began = time.process_time()
    with pytest.raises(InvalidInputs) as caught:
        check_inputs(plan.workflow("W"), inputs)
    assert time.process_time() - began < 2
    assert len(caught.value.problems) == 101
    assert caught.value.problems[-1] == "and 4,901 more problems"
    assert "did you mean 'number'?" in caught.value.problems[0]
