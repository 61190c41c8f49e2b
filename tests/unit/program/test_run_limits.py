"""The limit of a workflow's open runs, in the signature of AFL text."""

from __future__ import annotations

import pytest

from flowengine.afl import compile_text
from flowengine.errors import InvalidProgram
from flowengine.program import link_program

TEXT = (
    "namespace s {{ event facet F(n: Long) => (m: Long)\n workflow W(n: Long) => (m: Long) "
    "with flowengine.Runs({}) andThen {{ s = F(n = $.n) yield W(m = s.m) }} }}"
)


def test_a_workflow_limits_its_open_runs() -> None:
    assert link_program(compile_text(TEXT.format("count = 2"))).workflow("s.W").runs == 2


@pytest.mark.parametrize("given", ["count = 0", 'count = "a"', "number = 1", "count = 1001", ""])
def test_a_limit_that_cannot_be_applied_is_refused(given: str) -> None:
    with pytest.raises(InvalidProgram, match=r"flowengine\.Runs"):
        link_program(compile_text(TEXT.format(given)))
