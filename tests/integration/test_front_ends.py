"""Four front ends, one outcome.

Each generated description is written as a traced Python module, as AFL text, and as program
JSON; those without loops, choices and attempts also as a YAML document. All run with the same
results and failures of facets, each in another order, and must agree on state, results, error,
every step and every task.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from flowengine.afl import compile_text
from flowengine.program import write_program
from flowengine.testing import Outcome, run_program
from flowengine.testing.program_runner import Handler
from tests.examples_drawn import AT_RANDOM
from tests.integration.front_ends import as_document, as_program, as_python
from tests.integration.front_ends.descriptions import (
    ERRORS,
    EVENTS,
    Attempt,
    Call,
    Choice,
    Description,
    Loop,
    Number,
)
from tests.integration.front_ends.generator import generate

SEEDS = st.integers(0, 2**32)
INPUTS = st.integers(-3, 12)


@dataclass(frozen=True)
class Answers:
    """Deterministic results of event facets: a function of seed, facet and arguments."""

    seed: int
    failing: int  #: percentage of calls that fail; `risk` fails more often

    def of(self, facet: str, data: dict[str, Any]) -> int:
        key = json.dumps([self.seed, facet, data], sort_keys=True)
        dice = hashlib.blake2b(key.encode()).digest()
        if dice[0] % 100 < (60 if facet == "risk" else self.failing):
            kind = ERRORS[dice[1] % len(ERRORS)]
            raise type(kind, (Exception,), {})(f"{facet} refuses {json.dumps(data)}")
        return dice[2] % 12 - 2

    def handlers(self, returned: str) -> dict[str, Handler]:
        return {f"w.{facet}": self._handler(facet, returned) for facet in EVENTS}

    def _handler(self, facet: str, returned: str) -> Handler:
        return lambda data: {returned: self.of(facet, data)}


def run(program: Any, answers: Answers, n: int, order: int, names: dict[str, str]) -> Outcome:
    """Run a program; `names` are the result names of its event facets and of itself."""
    handlers = answers.handlers(names["event"])
    return run_program(program, "w.Work", {"n": n}, handlers, order="shuffle", seed=order)


def summary(outcome: Outcome, result: str) -> dict[str, Any]:
    """Return the parts of an outcome that must be equal, without the name of the result."""
    assert outcome.status in ("COMPLETED", "FAILED")
    return {
        "state": outcome.status,
        "result": (outcome.outputs or {}).get(result),
        "error": outcome.error,
        "steps": outcome.steps,
        "tasks": sorted((name, json.dumps(data, sort_keys=True)) for name, data in outcome.tasks),
    }


def test_the_generator_covers_every_construct_and_half_of_the_workflows_can_be_text() -> None:
    drawn = [generate(seed, 8, for_text=seed % 2 == 0) for seed in range(100)]
    done = [s for description in drawn for body in description.bodies() for s in body.statements]
    loops = [s for s in done if isinstance(s, Loop)]
    attempts = [s for s in done if isinstance(s, Attempt)]
    assert {type(s) for s in done} == {Call, Loop, Choice, Attempt}
    assert {s.facet for s in done if isinstance(s, Call)} >= {*EVENTS, "countdown"} - {"show"}
    assert {type(loop.limit) for loop in loops} > {Number, type(None)}
    assert {loop.collects for loop in loops} == {True, False}
    assert {len(s.cases) for s in done if isinstance(s, Choice)} == {1, 2, 3}
    assert {len(s.handlers) for s in attempts} == {0, 1, 2}
    assert {s.always is None for s in attempts} == {True, False}
    assert {s.shows for s in attempts} == {None, "message", "type", "path"}
    assert sum(description.can_be_text() for description in drawn) >= 50


TRACED = {"event": "result", "own": "result"}
WRITTEN = {"event": "y", "own": "out"}


@settings(max_examples=500 if AT_RANDOM else 12, suppress_health_check=list(HealthCheck))
@given(
    drawn=st.builds(generate, SEEDS, st.integers(3, 12), st.booleans()),
    answers=st.builds(Answers, SEEDS, st.sampled_from([12, 4, 0])),
    n=INPUTS,
    orders=st.tuples(SEEDS, SEEDS, SEEDS),
)
def test_a_workflow_has_the_same_outcome_in_every_front_end(
    drawn: Description, answers: Answers, n: int, orders: tuple[int, int, int]
) -> None:
    source = as_python.source(drawn)
    note(source)
    program = as_python.trace_module(source)
    traced = summary(run(program, answers, n, orders[0], TRACED), TRACED["own"])
    by_hand = as_program.document(drawn)
    assert summary(run(by_hand, answers, n, orders[1], WRITTEN), WRITTEN["own"]) == traced
    if drawn.can_be_text():
        text = as_program.text(drawn)
        note(text)
        compiled = write_program(compile_text(text))
        assert summary(run(compiled, answers, n, orders[2], WRITTEN), WRITTEN["own"]) == traced


@settings(max_examples=500 if AT_RANDOM else 12, suppress_health_check=list(HealthCheck))
@given(
    drawn=st.builds(as_document.drawn, SEEDS, st.integers(1, 10)),
    answers=st.builds(Answers, SEEDS, st.sampled_from([12, 4, 0])),
    n=INPUTS,
    orders=st.tuples(SEEDS, SEEDS, SEEDS, SEEDS),
)
def test_a_document_has_the_same_outcome_as_the_other_front_ends(
    drawn: Description, answers: Answers, n: int, orders: tuple[int, int, int, int]
) -> None:
    text = as_document.document(drawn)
    note(text)
    program = as_document.program(text)
    read = summary(run(program, answers, n, orders[0], TRACED), TRACED["own"])
    traced = as_python.trace_module(as_python.source(drawn))
    assert summary(run(traced, answers, n, orders[1], TRACED), TRACED["own"]) == read
    by_hand = as_program.document(drawn)
    assert summary(run(by_hand, answers, n, orders[2], WRITTEN), WRITTEN["own"]) == read
    compiled = write_program(compile_text(as_program.text(drawn)))
    assert summary(run(compiled, answers, n, orders[3], WRITTEN), WRITTEN["own"]) == read
