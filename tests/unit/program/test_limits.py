"""Values that some database cannot store are refused when a program is loaded."""

from __future__ import annotations

import math

import pytest

from flowengine.errors import InvalidProgram
from flowengine.program import link_program
from flowengine.program.nodes import EventOptions, RetryPolicy
from tests.integration.engines import event_facet, one, program


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (EventOptions(task_list="l" * 256), "task_list has 256 characters, and may have 255"),
        (EventOptions(task_list="a\0b"), "task_list has a character in it"),
        (EventOptions(task_list="a\ud800"), "task_list has a character in it"),
        (EventOptions(breaker="b" * 201), "breaker has 201 characters, and may have 200"),
        (EventOptions(timeout=math.inf), "timeout is inf seconds"),
        (EventOptions(timeout=1e17), "timeout is 1e\\+17 seconds, and may be 3.1536e\\+09"),
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
