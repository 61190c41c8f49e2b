"""Programs with mutated JSON, and odd answers to their events: refused, or run to an end.

Never another exception, never for long, and without a growth of memory.
"""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from random import Random
from typing import Any

import pytest

from flowengine.errors import InvalidInputs, InvalidProgram, ValueRefused
from flowengine.evaluator import RunState, TaskDefinition
from flowengine.evaluator.triggers import Failed, Lost, Outcome, Succeeded
from flowengine.program import link_program, parse_program
from flowengine.program.nodes import FacetKind
from flowengine.program.types import check_inputs
from flowengine.store import codec
from tests.builders import block, event, of, program, schema, step, to, workflow
from tests.corpus import CASES
from tests.unit.evaluator.in_memory_run import MemoryRun
from tests.unit.program.test_mutations import mutated

LONGEST = 5.0  #: seconds for one program
EVENTS = 40  #: answered in one run
SCHEMAS: list[Any] = [
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"minimum": 0}}},
    {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "uniqueItems": True},
    {"type": ["string", "null"], "pattern": "^(a|b)*$", "maxLength": 20},
    {"patternProperties": {"^x": {"const": 1}}, "additionalProperties": False},
]
VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, 10**300, "", "a", "ab" * 9, "\0", [], ["a", []], {}, {"a": 1}),
    *({"xy": 1}, {"a": {"b": [1]}}, [[[[1]]]], "x" * 20_000, list(range(300)), "é\ud800"),
]


def with_schema(of_field: Any) -> dict[str, Any]:
    field = {"name": "y", "type": "Json", "schema": of_field}
    body = block(
        step("a", "E", x=1),
        step("s", "S", y=of("a.y")),
        yields=[to("W", out=of("s.y"))],
    )
    return program(schema("S", [field]), event("E", "x", [field]), workflow("W", "", "out", body))


DOCUMENTS: list[tuple[Any, dict[str, Any]]] = [
    *((case["program"], case["inputs"]) for case in CASES.values()),
    *((with_schema(one), {}) for one in SCHEMAS * 4),
]


def run_one(document: Any, inputs: dict[str, Any], random: Random) -> str:
    """Load a program and run it; return how it ended."""
    try:
        plan = link_program(parse_program(document), allow_scripts=True)
    except InvalidProgram:
        return "refused"
    workflows = [f for f in plan.facets.values() if f.kind is FacetKind.WORKFLOW]
    if not workflows:
        return "without a workflow"
    try:
        for name, value in inputs.items():
            codec.check_value(name, value, 1_000_000)
        check_inputs(workflows[0], inputs)
    except (InvalidInputs, ValueRefused):
        return "inputs refused"
    run = MemoryRun(document, inputs, workflow=workflows[0].name, max_recursive_calls=100)
    left = EVENTS

    def answer(task: TaskDefinition) -> Outcome | None:
        nonlocal left
        left -= 1
        if left < 0:
            return None
        facet = run.plan.facets[task.name]
        match random.randrange(12):
            case 0:
                return Failed({"type": "Oops", "message": "x"}, retry=random.random() < 0.5)
            case 1:
                return Lost("the worker died")
        result = {field.name: random.choice(VALUES) for field in facet.returns}
        for name, value in result.items():
            try:
                codec.check_value(name, value, 1_000_000)
            except ValueRefused as problem:
                return Failed({"type": "ValueRefused", "message": str(problem)}, retry=False)
        return Succeeded(result)

    run.answer_all(answer)
    assert run.view.alarm is None
    return "waits" if run.view.state == RunState.RUNNING else run.view.state


def fuzz(seed: int, count: int) -> None:
    random = Random(seed)
    counts: Counter[str] = Counter()
    slowest = 0.0
    before = 0
    for number in range(count):
        document, inputs = random.choice(DOCUMENTS)
        changed = mutated(document, random)
        began = time.process_time()
        try:
            counts[run_one(changed, inputs, random)] += 1
        except Exception:
            print(f"seed {seed}, program {number}: {json.dumps(changed)[:5_000]}")
            raise
        seconds = time.process_time() - began
        slowest = max(slowest, seconds)
        assert seconds < LONGEST, f"seed {seed}, program {number}: {json.dumps(changed)[:5_000]}"
        if number == count // 3:  # caches are filled
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"\nseed {seed}: {count} programs, {dict(counts)}; slowest {slowest:.2f} s; +{grown:.0f} MB"
    )
    assert counts["refused"] > count / 10
    assert counts[RunState.COMPLETED] + counts[RunState.FAILED] > count / 10
    assert grown < 100


@pytest.mark.parametrize("seed", [1])
def test_mutated_programs_are_refused_or_run_to_an_end(seed: int) -> None:
    fuzz(seed, 200)


@pytest.mark.chaos
def test_many_mutated_programs_are_refused_or_run_to_an_end(chaos_seed: int) -> None:
    fuzz(chaos_seed, 20_000)
