"""A program that grows without end meets a limit, at a bounded cost."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from flowengine.evaluator import IterationChanges, RunState
from flowengine.evaluator.triggers import Failed, Succeeded
from tests.builders import (
    Node,
    block,
    catching,
    event,
    facet,
    given,
    joined,
    listed,
    of,
    op,
    program,
    step,
    to,
    workflow,
)
from tests.unit.evaluator.in_memory_run import MemoryRun, comparable

E = event("E", "x", "y")
F = facet("F", "x", "y", block(yields=[to("F", y=given("x"))]))


def repeated(grow: Any, times: int, first: Any) -> Node:
    """A chain of steps, each of which takes the result of the one before and makes it larger."""
    steps = [step("s0", "F", x=first)]
    steps += [step(f"s{i}", "F", x=grow(of(f"s{i - 1}.y"))) for i in range(1, times)]
    return program(F, workflow("W", "", "", block(*steps)))


def doubled_map(value: Any) -> Node:
    entries = [{"key": key, "value": value} for key in ("a", "b")]
    return {"type": "MapLiteral", "entries": entries}


GROWTH = {
    "a concatenation": (lambda v: joined(v, v), "ab"),
    "a sum of texts": (lambda v: op(v, "+", v), "ab"),
    "a sum of lists": (lambda v: op(v, "+", v), [1, 2]),
    "a list of lists": (lambda v: listed(v, v), 1),
    "a map of maps": (doubled_map, 1),
    "one large expression": (lambda v: joined(*[v] * 1_000), "ab"),
    "a list with one value a thousand times": (lambda v: listed(*[v] * 1_000), "ab"),
}


@pytest.mark.parametrize("name", GROWTH)
def test_a_value_that_doubles_is_refused_before_it_fills_the_memory(name: str) -> None:
    grow, first = GROWTH[name]
    document = repeated(grow, 5 if "thousand" in name or "large" in name else 20, first)
    tracemalloc.start()
    try:
        run = MemoryRun(document, max_computed_bytes=50_000)
        run.settle()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert run.view.error is not None
    assert run.view.error["type"] == "TooLarge"
    for part in ("'x'", "50,000", "max_computed_bytes"):
        assert part in run.view.error["message"]
    assert most < 20_000_000


def test_a_value_of_exactly_the_limit_is_accepted() -> None:
    text = "a" * 98 + "bc"
    run = MemoryRun(repeated(lambda v: joined(v), 2, text), max_computed_bytes=len(text) + 2)
    assert run.view.state == RunState.COMPLETED
    run = MemoryRun(repeated(lambda v: joined(v), 2, text), max_computed_bytes=len(text) + 1)
    assert run.view.state == RunState.FAILED


def test_the_size_is_counted_in_the_bytes_of_the_json() -> None:
    run = MemoryRun(repeated(lambda v: joined(v), 2, "ü" * 100), max_computed_bytes=500)
    assert run.view.error is not None
    assert run.view.error["type"] == "TooLarge"


def test_a_value_that_nests_deeper_with_every_step_is_refused() -> None:
    run = MemoryRun(repeated(lambda v: listed(v), 60, 1), max_json_depth=50)
    assert run.view.error is not None
    assert run.view.error["type"] == "TooLarge"
    assert "50 lists and maps inside each other" in run.view.error["message"]
    assert MemoryRun(repeated(lambda v: listed(v), 51, 1), max_json_depth=50).view.error is None


def test_the_merged_results_of_a_loop_have_the_same_limit() -> None:
    items = block(
        step("f", "F", x=given("i")), yields=[to("W", all=listed(of("f.y")))], foreach=("i", "$")
    )
    items["foreach"]["iterable"] = given("texts")
    document = program(F, workflow("W", "texts", "all", items))
    texts = ["x" * 1_000] * 20
    assert MemoryRun(document, {"texts": texts}).outputs == {"all": texts}
    run = MemoryRun(document, {"texts": texts}, max_computed_bytes=10_000)
    run.settle()
    assert run.view.error is not None
    assert (run.view.error["type"], run.view.error["path"]) == ("TooLarge", "W")


# --- steps ---


def branching(levels: int) -> Node:
    """Facets that call the next one twice: no recursion, and 2 ** levels steps."""
    body = [step("a", "F0"), step("b", "F0")]
    facets = [facet("F0", "", "n", block(yields=[to("F0", n=1)]))]
    for level in range(1, levels):
        body = [step("a", f"F{level - 1}"), step("b", f"F{level - 1}")]
        total = to(f"F{level}", n=op(of("a.n"), "+", of("b.n")))
        facets.append(facet(f"F{level}", "", "n", block(*body, yields=[total])))
    last = f"F{levels - 1}"
    return program(
        *facets, workflow("W", "", "n", block(step("f", last), yields=[to("W", n=of("f.n"))]))
    )


def sizes(commits: list[IterationChanges]) -> list[int]:
    return [len(changes.created_steps) for changes in commits]


def test_a_large_graph_is_created_over_several_commits() -> None:
    whole, parts = MemoryRun(branching(9)), MemoryRun(branching(9), max_commit_steps=100)
    parts.settle()
    assert whole.outputs == parts.outputs == {"n": 256}
    assert sizes(whole.commits)[0] > 1_000
    # A row is advanced as a whole, so a commit may exceed the limit by the children of one row.
    assert max(sizes(parts.commits)) < 110
    assert comparable(whole) == comparable(parts)


def test_large_values_are_computed_over_several_commits() -> None:
    steps = [step(f"s{i}", "F", x=joined(given("text"), i)) for i in range(50)]
    document = program(F, workflow("W", "text", "", block(*steps)))
    inputs = {"text": "x" * 1_000}
    run = MemoryRun(document, inputs, max_commit_bytes=10_000)
    run.settle()
    assert run.view.state == RunState.COMPLETED
    assert max(changes.computed_bytes for changes in run.commits) < 12_000


@pytest.mark.parametrize("per_commit", [50, 10_000])
def test_a_graph_that_grows_without_recursion_fails_at_the_limit_of_the_run(
    per_commit: int,
) -> None:
    run = MemoryRun(branching(30), max_run_steps=500, max_commit_steps=per_commit)
    run.settle()
    assert run.view.error is not None
    assert run.view.error["type"] == "TooManySteps"
    for part in ("500", "max_run_steps"):
        assert part in run.view.error["message"]
    assert len(run.rows) <= 500


def test_the_items_of_a_loop_are_counted_when_it_begins() -> None:
    items = block(step("e", "E", x=given("i")), foreach=("i", list(range(300))))
    document = program(E, workflow("W", "", "", items))
    run = MemoryRun(document, max_run_steps=200)
    assert run.view.error is not None
    assert run.view.error["type"] == "TooManySteps"
    assert len(run.rows) < 10, "no item has begun"
    run = MemoryRun(document, max_run_steps=310)
    run.settle()
    run.answer_all(lambda task: Succeeded({"y": 1}))
    assert run.view.state == RunState.COMPLETED
    assert run.view.step_count == len(run.rows)


def test_loops_that_begin_together_share_the_limit() -> None:
    loops = [
        step(f"s{n}", "F", block(step("e", "E", x=1), foreach=("i", list(range(90)))), x=1)
        for n in range(5)
    ]
    run = MemoryRun(program(E, F, workflow("W", "", "", block(*loops))), max_run_steps=200)
    run.settle()
    run.answer_all(lambda task: Succeeded({"y": 1}))
    assert run.view.error is not None
    assert run.view.error["type"] == "TooManySteps"
    assert len(run.rows) <= 200


def test_repeated_tries_count_as_steps() -> None:
    stubborn = event("E", "x", "y", options={"retry": {"attempts": 10**9, "first_wait": 0}})
    run = MemoryRun(
        program(stubborn, workflow("W", "", "", block(step("e", "E", x=1)))), max_run_steps=20
    )
    run.answer_all(lambda task: Failed({"type": "Oops", "message": "broken"}))
    assert run.view.error is not None
    assert "max_run_steps" in run.view.error["message"]
    assert len(run.tasks) < 20


# --- errors ---

LONG = "x" * 100_000


def failed(run: MemoryRun) -> dict[str, Any]:
    run.settle()
    error = {"type": "Oops", "message": LONG, "traceback": LONG, "bases": ["Exception"]}
    run.answer_all(lambda task: Failed(dict(error), retry=False))
    assert run.view.state == RunState.FAILED
    assert run.view.error is not None
    return run.view.error


def test_an_error_is_stored_once_and_repeated_as_an_excerpt() -> None:
    inner = facet("G", "", "", block(step("e", "E", x=given("i")), foreach=("i", [1, 2, 3])))
    inner["params"] = [{"name": "i", "type": "Json"}]
    outer = facet("F", "", "", block(step("g", "G", i=1)))
    run = MemoryRun(program(E, inner, outer, workflow("W", "", "", block(step("f", "F")))))
    error = failed(run)
    assert error["message"].startswith("xxx")
    assert len(error["message"]) <= 1_000
    assert error["path"] == "W.f.g[0].e", "it says where the whole error is"
    assert "traceback" not in error
    whole = run.step("W.f.g[0].e").error
    assert whole is not None
    assert len(whole["message"]) == 8_000
    assert whole["message"].endswith("x… (100,000 characters)")
    assert len(whole["traceback"]) == 8_000
    texts = [json.dumps([row["error"], row["failure"]]) for row in run.rows.values()]
    assert sum(map(len, texts)) < 120_000


def test_errors_of_nested_loops_and_catches_do_not_grow_with_the_depth() -> None:
    body = block(step("e", "E", x=1), foreach=("i", list(range(5))))
    facets = [facet("F0", "", "", body)]
    for level in range(1, 5):
        calls = step("f", f"F{level - 1}")
        again = catching(step("c", f"F{level - 1}"), step("e", "E", x=1))
        facets.append(facet(f"F{level}", "", "", block(calls, again)))
    run = MemoryRun(program(E, *facets, workflow("W", "", "", block(step("f", "F4")))))
    failed(run)
    assert max(len(row["error"] or "") for row in run.rows.values()) < 40_000


def test_comparisons_of_long_values_end_at_the_limit_of_parts() -> None:
    long = given("xs")
    same: Node = op(long, "==", long)
    for _ in range(20):
        same = op(same, "&&", op(long, "==", long))
    document = program(F, workflow("W", "xs", "y", block(step("s", "F", x=same))))
    inputs = {"xs": [[1, 2], "x" * 160, {"a": 1}] * 100}
    assert MemoryRun(document, inputs).view.state == RunState.COMPLETED
    run = MemoryRun(document, inputs, max_expression_parts=20_000)
    assert run.view.error is not None
    assert (run.view.error["type"], run.view.error["path"]) == ("TooLarge", "W.s")
    assert "max_expression_parts" in run.view.error["message"]


def test_expensive_expressions_and_validations_share_a_commit_as_large_values_do() -> None:
    shape = {"$defs": {"a": {"items": {"type": "integer"}}}, "$ref": "#/$defs/a"}
    field = {"name": "y", "type": "Json", "schema": shape}
    schema = {"type": "SchemaDecl", "name": "S", "fields": [field]}
    for first in (step("s", "S", y=given("xs")), step("s", "F", x=op(given("xs"), "==", [1]))):
        body = block(first, foreach=("i", given("is")), yields=[to("W", ys=listed(1))])
        document = program(F, schema, workflow("W", "xs is", "ys", body))
        inputs = {"xs": [1] * 1_000, "is": [1] * 50}
        whole, parts = MemoryRun(document, inputs), MemoryRun(document, inputs, max_commit_bytes=1)
        parts.settle()
        assert whole.outputs == parts.outputs == {"ys": [1] * 50}
        assert len(parts.commits) >= 50, "one validation, or one comparison, each"


def test_a_validation_ends_at_the_limit_of_checks() -> None:
    field = {"name": "y", "type": "Json", "schema": {"items": {"type": "integer"}}}
    schema = {"type": "SchemaDecl", "name": "S", "fields": [field]}
    document = program(schema, workflow("W", "xs", "", block(step("s", "S", y=given("xs")))))
    inputs = {"xs": [1] * 1_000}
    assert MemoryRun(document, inputs).view.state == RunState.COMPLETED
    run = MemoryRun(document, inputs, max_schema_checks=1_000)
    assert run.view.error is not None
    assert run.view.error["type"] == "TypeMismatch"
    limit = "1,000 checks, which is the limit (setting max_schema_checks)"
    assert limit in run.view.error["message"]
