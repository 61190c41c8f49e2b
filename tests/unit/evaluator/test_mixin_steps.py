"""Arguments from elsewhere: mixins, implicits; and instances of schemas."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.errors import InvalidProgram
from flowengine.evaluator import RunState
from tests.builders import (
    Node,
    block,
    catching,
    event,
    facet,
    given,
    implicit,
    listed,
    mixed,
    of,
    op,
    program,
    schema,
    signed,
    step,
    to,
    workflow,
)
from tests.unit.evaluator.in_memory_run import MemoryRun

E = event("E", "x", "y")
SHIP = event("Ship", ["a", *({"name": n, "type": "Json", "default": n} for n in "bcd")], "id")


def run_of(*blocks: Node, beside: tuple[Node, ...] = (), **inputs: Any) -> MemoryRun:
    document = program(E, *beside, workflow("W", list(inputs), "out", *blocks))
    return MemoryRun(document, inputs)


def out(value: Any) -> list[Node]:
    return [to("W", out=value)]


# --- where arguments come from ---


def test_explicit_wins_over_mixin_over_implicit_over_default() -> None:
    call = mixed(step("s", "Ship", a=1), "M", a=2, b=2)
    run = run_of(block(call), beside=(SHIP, implicit("Ship", a=3, b=3, c=3)))
    assert run.task("W.s").data == {"a": 1, "b": 2, "c": 3, "d": "d"}


def test_the_first_of_two_mixins_wins_and_undeclared_arguments_are_ignored() -> None:
    call = mixed(mixed(step("s", "E"), "M", x=1, other=1), "N", x=2)
    run = run_of(block(call), beside=(facet("M", "x other"), facet("N", "x")))
    assert run.task("W.s").data == {"x": 1}


def test_a_mixin_with_an_alias_is_a_map_below_it() -> None:
    call = mixed(step("s", "E", x=1), "Ship", "m", a=given("n"))
    run = run_of(block(call, yields=out(of("s.m.a"))), beside=(SHIP,), n=7)
    assert run.task("W.s").data == {"x": 1, "m": {"a": 7}}
    run.succeed("W.s", y=0)
    assert run.outputs == {"out": 7}


def test_a_mixin_with_an_alias_fills_the_parameter_of_its_name() -> None:
    send = event("Send", ["to", {"name": "retry", "type": "Json", "default": None}], "id")
    call = mixed(step("s", "Send", to="me"), "Policy", "retry", n=given("n"))
    flow = block(call, yields=out(of("s.retry.n")))
    run = run_of(flow, beside=(send, facet("Policy", "n"), implicit("Send", retry=0)), n=7)
    assert run.task("W.s").data == {"to": "me", "retry": {"n": 7}}
    run.succeed("W.s", id=1)
    assert run.outputs == {"out": 7}


def test_arguments_of_mixins_are_waited_for() -> None:
    call = mixed(step("t", "E"), "M", x=of("s.y"))
    run = run_of(block(step("s", "E", x=1), call))
    run.succeed("W.s", y=5)
    assert run.task("W.t").data == {"x": 5}


# --- mixins of a signature ---

FLOUR = facet(
    "Flour",
    ["g", {"name": "kind", "type": "Json", "default": "rye"}],
    "net used",
    block(step("w", "E", x=given("g")), yields=[to("Flour", net=of("w.y"))]),
)


def loaf(*yields: Node, make: Any = facet) -> Node:
    declared = make("Loaf", "size", "label", block(yields=yields))
    return signed(declared, "Flour", "flour", g=op(given("size"), "*", 100))


def test_a_mixin_of_a_signature_runs_before_the_body_which_reads_it() -> None:
    label = to("Loaf", label=listed(given("flour.kind"), given("flour.net")))
    run = run_of(
        block(step("l", "Loaf", size=5), yields=out(of("l.label"))), beside=(FLOUR, loaf(label))
    )
    assert run.task("W.l[with-flour].w").data == {"x": 500}
    run.succeed("W.l[with-flour].w", y=480)
    assert run.outputs == {"out": ["rye", 480]}


def test_a_body_may_yield_to_a_mixin_and_it_is_read_outside_below_its_alias() -> None:
    made = loaf(to("flour", used=op(given("flour.net"), "-", 1)), to("Loaf", label="x"))
    run = run_of(block(step("l", "Loaf", size=1), yields=out(of("l"))), beside=(FLOUR, made))
    run.succeed("W.l[with-flour].w", y=80)
    flour = {"g": 100, "kind": "rye", "net": 80, "used": 79}
    assert run.outputs == {"out": {"size": 1, "label": "x", "flour": flour}}


def test_a_yield_may_name_the_facet_of_the_only_mixin() -> None:
    made = loaf(to("Flour", used=1))
    run = run_of(
        block(step("l", "Loaf", size=1), yields=out(of("l.flour.used"))), beside=(FLOUR, made)
    )
    run.succeed("W.l[with-flour].w", y=80)
    assert run.outputs == {"out": 1}


def test_a_mixin_at_the_call_overrides_the_arguments_of_the_signature() -> None:
    call = mixed(step("l", "Loaf", size=5), "Flour", "flour", g=7, kind="oat")
    run = run_of(block(call, yields=out(of("l.flour.kind"))), beside=(FLOUR, loaf()))
    assert run.task("W.l[with-flour].w").data == {"x": 7}
    run.succeed("W.l[with-flour].w", y=1)
    assert run.outputs == {"out": "oat"}


def test_an_event_reads_the_results_of_its_mixin() -> None:
    run = run_of(block(step("l", "Loaf", size=1)), beside=(FLOUR, loaf(make=event)))
    assert [task.name for task in run.outstanding()] == ["E"]
    run.succeed("W.l[with-flour].w", y=80)
    data = run.task("W.l").data
    assert data == {"size": 1, "flour": {"g": 100, "kind": "rye", "net": 80}}


def test_a_mixin_of_a_signature_fills_the_parameter_of_its_name() -> None:
    made = signed(event("Loaf", "size flour", "label"), "Flour", "flour", g=given("size"))
    call = step("l", "Loaf", size=1)
    run = run_of(block(call), beside=(FLOUR, made, implicit("Loaf", flour=0)))
    run.succeed("W.l[with-flour].w", y=80)
    assert run.task("W.l").data == {"size": 1, "flour": {"g": 1, "kind": "rye", "net": 80}}


def test_a_failed_mixin_fails_its_step_which_may_catch_it() -> None:
    call = catching(step("l", "Loaf", size=1), yields=[to("Loaf", label=given("error"))])
    run = run_of(block(call, yields=out(of("l.label"))), beside=(FLOUR, loaf()))
    run.fail("W.l[with-flour].w", "damp")
    assert run.outputs == {"out": "damp"}


def test_a_workflow_may_have_mixins_and_they_are_no_outputs() -> None:
    flow = signed(
        workflow("W", "n", "out", block(yields=out(given("e.y")))), "E", "e", x=given("n")
    )
    run = MemoryRun(program(E, flow), {"n": 3})
    run.succeed("W[with-e]", y=4)
    assert run.outputs == {"out": 4}


# --- schemas ---

SPOT = schema("Spot", "lat:Double tags:[String]")


def test_an_instance_of_a_schema_is_a_step_with_its_fields() -> None:
    made = step("s", "Spot", lat=given("n"), tags=["a"])
    run = run_of(
        block(made, step("e", "E", x=of("s")), yields=out(of("s.tags"))), beside=(SPOT,), n=1
    )
    assert run.task("W.e").data == {"x": {"lat": 1, "tags": ["a"]}}
    run.succeed("W.e", y=0)
    assert run.outputs == {"out": ["a"]}


def test_values_that_do_not_fit_the_schema_fail_the_step() -> None:
    made = step("s", "Spot", lat=given("n"), tags=["a"])
    run = run_of(block(made), beside=(SPOT,), n="north")
    assert run.view.state == RunState.FAILED
    assert run.view.error == {
        "type": "TypeMismatch",
        "message": "not a Spot: 'lat': expected Double, found 'north'",
        "path": "W.s",
    }


def test_an_instance_that_does_not_fit_may_be_caught() -> None:
    made = catching(step("s", "Spot", lat=given("n"), tags=[]), yields=out(given("error_type")))
    assert run_of(block(made), beside=(SPOT,), n="x").outputs == {"out": "TypeMismatch"}


# --- a timeout ---


def test_a_timeout_of_the_call_comes_before_that_of_the_signature() -> None:
    slow = signed(event("Slow", "x", "y"), "Timeout", minutes=2)
    calls = (step("a", "Slow", x=1), mixed(step("b", "Slow", x=1), "Timeout", seconds=3, ms=500))
    run = run_of(block(*calls), beside=(slow,))
    assert run.task("W.a").timeout_ms == 120_000
    assert run.task("W.b").timeout_ms == 3_500


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"fortnights": 1}, "it has hours, minutes, seconds, ms"),
        ({"seconds": given("n")}, "must be a constant number"),
        ({"seconds": 0}, "must be greater than 0"),
    ],
)
def test_a_timeout_that_cannot_be_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidProgram, match=why):
        run_of(block(mixed(step("s", "E", x=1), "Timeout", **said)), n=1)
