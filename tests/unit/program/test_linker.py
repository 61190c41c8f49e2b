"""A program that cannot run is refused when it is loaded, with everything that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.errors import InvalidInputs, InvalidProgram, UnknownWorkflow
from flowengine.program import Plan, link_program, parse_program
from flowengine.program.addresses import RowKind, StepSource
from flowengine.program.plan import EdgeKind
from flowengine.program.types import check_inputs
from tests.builders import (
    Node,
    always,
    block,
    case,
    catching,
    check,
    default,
    event,
    facet,
    given,
    implicit,
    listed,
    log,
    mixed,
    namespace,
    of,
    op,
    program,
    schema,
    signed,
    step,
    to,
    when,
    workflow,
)

E = event("E", "x", "y")


def link(*declarations: Node) -> Plan:
    return link_program(parse_program(program(*declarations)))


def problems(*declarations: Node) -> list[str]:
    with pytest.raises(InvalidProgram) as caught:
        link(*declarations)
    return [str(problem) for problem in caught.value.problems]


def in_workflow(*blocks: Node) -> list[str]:
    """The problems of a workflow W(n) => (out) with these blocks, beside the event facet E."""
    return problems(E, workflow("W", "n", "out", *blocks))


# --- facets ---


def test_an_unknown_facet_is_refused_with_the_nearest_name() -> None:
    found = problems(
        namespace("shop", event("Charge", "sum")),
        workflow("W", "", "", block(step("s", "Charg", sum=1))),
    )
    assert found == ["W, step 's': unknown facet 'Charg'; did you mean 'shop.Charge'?"]


def test_an_unknown_facet_that_resembles_none_is_refused_without_a_hint() -> None:
    assert in_workflow(block(step("s", "Quux"))) == ["W, step 's': unknown facet 'Quux'"]


def test_a_qualified_name_is_exact() -> None:
    found = problems(namespace("a", E), workflow("W", "", "", block(step("s", "b.E", x=1))))
    assert found == ["W, step 's': unknown facet 'b.E'; did you mean 'a.E'?"]


def test_an_ambiguous_name_is_refused_with_both_candidates() -> None:
    found = problems(
        namespace("a", E), namespace("b", E), workflow("W", "", "", block(step("s", "E", x=1)))
    )
    assert found == [
        "W, step 's': 'E' is ambiguous: a.E and b.E have that name; write the qualified name"
    ]


def test_two_used_namespaces_with_the_same_name_are_ambiguous_too() -> None:
    used = workflow("W", "", "", block(step("s", "E", x=1)))
    found = problems(namespace("a", E), namespace("b", E), namespace("c", used, uses=["a", "b"]))
    assert "a.E and b.E" in found[0]


def test_a_used_namespace_wins_over_one_that_is_not_used() -> None:
    used = workflow("W", "", "", block(step("s", "E", x=1)))
    plan = link(namespace("a", E), namespace("b", E), namespace("c", used, uses=["b"]))
    called = plan.statements["c.W/0/s"].facet
    assert called is not None
    assert called.name == "b.E"


def test_a_name_of_the_own_namespace_wins_over_a_used_one() -> None:
    own = workflow("W", "", "", block(step("s", "E", x=1)))
    plan = link(namespace("a", E), namespace("c", own, E, uses=["a"]))
    called = plan.statements["c.W/0/s"].facet
    assert called is not None
    assert called.name == "c.E"


def test_a_facet_declared_twice_is_refused() -> None:
    assert problems(namespace("a", E), namespace("a", E)) == [
        "a.E: is declared twice in this program"
    ]


def test_a_parameter_or_return_declared_twice_is_refused() -> None:
    assert problems(facet("F", "a a", "b b")) == [
        "F: declares the parameter 'a' twice",
        "F: declares the return 'b' twice",
    ]


def test_a_facet_that_calls_itself_without_end_is_refused_with_the_way_round() -> None:
    found = problems(
        facet("F", "", "", block(step("g", "G"))), facet("G", "", "", block(step("f", "F")))
    )
    assert found == ["F: calls itself without end: F → G → F is a cycle"]


def test_a_facet_may_call_itself_for_each_item_of_a_list() -> None:
    link(facet("F", "xs", "", block(step("f", "F", xs=[]), foreach=("x", given("xs")))))


def test_a_facet_may_call_itself_when_the_statement_has_a_body_of_its_own() -> None:
    link(E, facet("F", "", "", block(step("f", "F", block(step("e", "E", x=1))))))


# --- names of steps ---


def test_a_cycle_of_steps_is_refused_with_the_names_of_its_steps() -> None:
    (found,) = in_workflow(
        block(step("a", "E", x=of("c.y")), step("b", "E", x=of("a.y")), step("c", "E", x=of("b.y")))
    )
    assert found == "W: the steps a → c → b → a wait for each other in a cycle"


def test_a_step_that_names_itself_is_refused() -> None:
    assert in_workflow(block(step("a", "E", x=of("a.y")))) == [
        "W: the steps a → a wait for each other in a cycle"
    ]


def test_a_cycle_through_an_inline_body_is_refused() -> None:
    (found,) = in_workflow(
        block(
            step("a", "E", block(step("inner", "E", x=of("b.y"))), x=1),
            step("b", "E", x=of("a.y")),
        )
    )
    assert found == "W: the steps a → b → a wait for each other in a cycle"


def test_a_cycle_through_the_yield_of_an_inline_body_is_refused() -> None:
    (found,) = in_workflow(
        block(
            step("a", "E", block(yields=[to("E", y=of("b.y"))]), x=1),
            step("b", "E", x=of("a.y")),
        )
    )
    assert "a → b → a" in found


def test_a_cycle_through_the_foreach_of_an_inline_body_is_refused() -> None:
    (found,) = in_workflow(
        block(
            step("a", "E", block(step("i", "E", x=1), foreach=("v", of("b.y"))), x=1),
            step("b", "E", x=of("a.y")),
        )
    )
    assert "a → b → a" in found


def test_a_long_chain_is_linked_without_recursion() -> None:
    chain = [step("s0", "E", x=1)]
    chain += [step(f"s{i}", "E", x=of(f"s{i - 1}.y")) for i in range(1, 5000)]
    link(E, workflow("W", "", "", block(*chain)))


def test_an_inline_body_may_name_its_own_step() -> None:
    link(E, workflow("W", "", "", block(step("a", "E", block(step("i", "E", x=of("a.y"))), x=1))))


def test_a_step_name_used_twice_in_a_block_is_refused() -> None:
    assert in_workflow(block(step("s", "E", x=1), step("s", "E", x=2))) == [
        "W: the step name 's' is used twice in a block"
    ]


def test_the_same_step_name_in_two_blocks_is_two_steps() -> None:
    plan = link(E, workflow("W", "", "", block(step("s", "E", x=1)), block(step("s", "E", x=1))))
    assert {"W/0/s", "W/1/s"} <= set(plan.statements)


@pytest.mark.parametrize("name", ["a.b", "a[0]", "a/b"])
def test_a_step_name_that_would_be_mistaken_for_a_path_is_refused(name: str) -> None:
    assert in_workflow(block(step(name, "E", x=1))) == [
        f"W: the step name {name!r} may not hold any of . / [ ]"
    ]


def test_an_unknown_step_is_refused() -> None:
    assert in_workflow(block(step("s", "E", x=of("t.y")))) == ["W, step 's': unknown step 't'"]


def test_a_step_of_a_later_block_is_refused_with_the_reason() -> None:
    assert in_workflow(block(step("s", "E", x=of("t.y"))), block(step("t", "E", x=1))) == [
        "W, block 0, step 's': unknown step 't'; it stands in a later block, and a block sees "
        "only earlier ones"
    ]


def test_a_step_inside_an_earlier_foreach_is_refused_with_the_cure() -> None:
    assert in_workflow(
        block(step("s", "E", x=1), foreach=("v", [1])), block(step("t", "E", x=of("s.y")))
    ) == [
        "W, block 1, step 't': unknown step 's'; a step inside a foreach has one value per "
        "item: yield it instead"
    ]


def test_a_step_inside_the_body_of_another_is_not_seen_from_outside() -> None:
    assert in_workflow(
        block(step("a", "E", block(step("inner", "E", x=1)), x=1), step("b", "E", x=of("inner.y")))
    ) == ["W, step 'b': unknown step 'inner'"]


def test_the_body_of_a_facet_does_not_see_the_steps_of_its_callers() -> None:
    found = problems(
        E,
        facet("F", "", "", block(step("i", "E", x=of("outer.y")))),
        workflow("W", "", "", block(step("outer", "E", x=1), step("f", "F"))),
    )
    assert found == ["F, step 'i': unknown step 'outer'"]


# --- inputs ---


def test_an_input_that_no_scope_declares_is_refused_with_the_nearest_name() -> None:
    found = problems(E, workflow("W", "amount", "", block(step("s", "E", x=given("amuont")))))
    assert found == ["W, step 's': no enclosing scope declares $.amuont; did you mean 'amount'?"]


def test_a_foreach_variable_is_seen_inside_its_items_only() -> None:
    assert in_workflow(
        block(step("s", "E", x=given("v")), foreach=("v", [1])), block(log(said=given("v")))
    ) == ["W, block 1, step 'sys.log': no enclosing scope declares $.v"]


def test_the_list_of_a_foreach_cannot_name_its_variable() -> None:
    assert in_workflow(block(foreach=("v", given("v")))) == [
        "W, foreach: no enclosing scope declares $.v"
    ]


def test_an_inline_body_sees_its_steps_parameters_and_then_outwards() -> None:
    plan = link(
        E,
        workflow("W", "n", "", block(step("a", "E", block(log(x=given("x"), n=given("n"))), x=1))),
    )
    # From the inline block: its step is one link out, the workflow's root three.
    assert plan.statements["W/0/a/0/sys.log"].sources.inputs == {"x": 1, "n": 3}


def test_the_body_of_a_facet_does_not_see_the_parameters_of_its_callers() -> None:
    found = problems(
        facet("F", "", "", block(log(n=given("n")))),
        workflow("W", "n", "", block(step("f", "F"))),
    )
    assert found == ["F, step 'sys.log': no enclosing scope declares $.n"]


# --- arguments ---


def test_a_missing_argument_is_refused() -> None:
    assert in_workflow(block(step("s", "E"))) == ["W, step 's': 'E' needs an argument 'x'"]


def test_an_argument_with_a_default_may_be_left_out() -> None:
    plan = link(
        event("E", [{"name": "x", "type": "Long", "default": 7}]),
        workflow("W", "", "", block(step("s", "E"))),
    )
    assert [name for name, _ in plan.statements["W/0/s"].arguments] == ["x"]


def test_an_unknown_argument_is_refused_with_the_nearest_name() -> None:
    found = problems(event("E", "address"), workflow("W", "", "", block(step("s", "E", adress=1))))
    assert found == [
        "W, step 's': 'E' has no parameter 'adress'; did you mean 'address'?",
        "W, step 's': 'E' needs an argument 'address'",
    ]


def test_an_argument_given_twice_is_refused() -> None:
    twice = step("s", "E", x=1)
    twice["call"]["args"] *= 2
    assert in_workflow(block(twice)) == ["W, step 's': argument 'x' is given twice"]


@pytest.mark.parametrize(
    ("declared", "value", "why"),
    [
        ("Long", "one", "expected Long, found 'one'"),
        ("Long", 1.5, "expected Long, found 1.5"),
        ("Long", True, "expected Long, found a truth value"),
        ("String", 1, "expected String, found 1"),
        ("Boolean", 0, "expected Boolean, found 0"),
        ("[Long]", 3, "expected a list, found 3"),
        ("[Long]", [1, "two"], "item 1: expected Long, found 'two'"),
        ("Long", op(1, "+", 0.5), "expected Long, found 1.5"),
    ],
)
def test_a_literal_argument_of_the_wrong_type_is_refused(
    declared: str, value: Any, why: str
) -> None:
    found = problems(
        event("E", f"x:{declared}"), workflow("W", "", "", block(step("s", "E", x=value)))
    )
    assert found == [f"W, step 's': argument 'x' of 'E': {why}"]


def test_an_argument_without_a_constant_value_is_not_checked() -> None:
    link(event("E", "x:Long"), workflow("W", "n:String", "", block(step("s", "E", x=given("n")))))


def test_a_constant_that_cannot_be_evaluated_fails_the_step_and_not_the_load() -> None:
    link(event("E", "x:Long"), workflow("W", "", "", block(step("s", "E", x=op(1, "/", 0)))))


def test_a_default_that_does_not_fit_or_is_not_constant_is_refused() -> None:
    assert problems(
        facet(
            "F",
            [
                {"name": "a", "type": "Long", "default": "one"},
                {"name": "b", "type": "Long", "default": given("a")},
                {"name": "c", "type": "Long", "default": op(1, "/", 0)},
            ],
        )
    ) == [
        "F, parameter 'a': the default does not fit: expected Long, found 'one'",
        "F, parameter 'b': the default cannot be evaluated: a constant cannot refer to $.a",
        "F, parameter 'c': the default cannot be evaluated: division by zero: 1 / 0",
    ]


def test_a_literal_is_held_against_the_schema_of_its_parameter() -> None:
    schema = {"type": "integer", "minimum": 10}
    found = problems(
        event("E", [{"name": "x", "type": "Long", "schema": schema}]),
        workflow("W", "", "", block(step("s", "E", x=3))),
    )
    assert found == ["W, step 's': argument 'x' of 'E': 3 is less than the minimum of 10"]


# --- yields ---


def test_a_yield_to_a_foreign_facet_is_refused() -> None:
    assert in_workflow(block(yields=[to("E", y=1)])) == [
        "W: yields to 'E', which is neither an enclosing facet nor its mixin"
    ]


def test_a_body_of_a_facet_cannot_yield_to_its_callers() -> None:
    found = problems(
        facet("F", "", "", block(yields=[to("W", out=1)])),
        workflow("W", "", "out", block(step("f", "F"))),
    )
    assert found == ["F: yields to 'W', which is neither an enclosing facet nor its mixin"]


def test_a_yield_goes_to_the_nearest_enclosing_step_of_that_name() -> None:
    plan = link(
        E,
        workflow(
            "W",
            "",
            "out",
            block(step("a", "E", block(yields=[to("E", y=1), to("W", out=2)]), x=1)),
        ),
    )
    assert [y.levels for y in plan.blocks["W/0/a/0"].yields] == [0, 1]
    assert plan.statements["W/0/a"].carries


def test_an_attribute_yielded_twice_in_one_yield_is_refused() -> None:
    twice = to("W", out=1)
    twice["call"]["args"] *= 2
    assert in_workflow(block(yields=[twice])) == ["W: yields 'out' twice in one yield"]


# --- attributes ---


def test_an_attribute_that_a_plain_facet_does_not_return_is_refused() -> None:
    found = problems(
        facet("F", "a", "b"),
        workflow("W", "", "", block(step("f", "F", a=1), log(said=of("f.c")))),
    )
    assert found == ["W, step 'sys.log': 'f' has no attribute 'c': 'F' declares a, b"]


def test_parameters_returns_and_yielded_attributes_of_a_plain_facet_may_be_read() -> None:
    link(
        facet("F", "a", "b extra", block(yields=[to("F", extra=1)])),
        workflow(
            "W",
            "",
            "",
            block(step("f", "F", a=1), log(a=of("f.a"), b=of("f.b"), c=of("f.extra"))),
        ),
    )


def test_an_attribute_that_the_own_body_of_a_statement_yields_may_be_read() -> None:
    link(
        facet("F", "", "own"),
        workflow(
            "W", "", "", block(step("f", "F", block(yields=[to("F", own=1)])), log(x=of("f.own")))
        ),
    )


def test_an_undeclared_attribute_of_an_event_may_be_there() -> None:
    link(E, workflow("W", "", "", block(step("s", "E", x=1), log(said=of("s.anything")))))


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "owner": {"$ref": "#/$defs/Owner"}},
    "$defs": {"Owner": {"type": "object", "properties": {"mail": {"type": "string"}}}},
}


@pytest.mark.parametrize("path", ["s.y.name", "s.y.owner.mail", "s.y.name.x", "s.y"])
def test_a_field_that_the_schema_of_a_result_has_may_be_read(path: str) -> None:
    link(
        event("E", "x", [{"name": "y", "type": "Json", "schema": SCHEMA}]),
        workflow("W", "", "", block(step("s", "E", x=1), log(said=of(path)))),
    )


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("s.y.nane", "s.y has no 'nane'; 'E' returns: name, owner"),
        ("s.y.owner.tel", "s.y.owner has no 'tel'; 'E' returns: mail"),
    ],
)
def test_a_field_that_the_schema_of_a_result_rules_out_is_refused(path: str, problem: str) -> None:
    found = problems(
        event("E", "x", [{"name": "y", "type": "Json", "schema": SCHEMA}]),
        workflow("W", "", "", block(step("s", "E", x=1), log(said=of(path)))),
    )
    assert found == [f"W, step 'sys.log': {problem}"]


# --- when, catch and always ---


def test_a_step_inside_a_case_is_not_seen_from_outside() -> None:
    (found,) = in_workflow(when(default(step("s", "E", x=1))), block(log(said=of("s.y"))))
    assert found == (
        "W, block 1, step 'sys.log': unknown step 's'; it stands in a case, which may not run: "
        "yield it instead"
    )


def test_a_case_does_not_see_the_steps_of_another() -> None:
    (found,) = in_workflow(
        when(case(given("n"), step("s", "E", x=1)), default(log(said=of("s.y"))))
    )
    assert found == "W, default, step 'sys.log': unknown step 's'"


def test_a_condition_is_read_where_the_block_stands() -> None:
    (found,) = in_workflow(when(case(of("s.y"), step("s", "E", x=1)), default()))
    assert found == "W, when: unknown step 's'"


def test_errors_are_read_only_in_a_catch_or_always_block() -> None:
    (found,) = in_workflow(block(log(said=given("error"))))
    assert found == "W, step 'sys.log': no enclosing scope declares $.error"


def test_a_catch_names_its_own_place_in_problems() -> None:
    (found,) = in_workflow(block(catching(step("s", "E", x=1), log(said=given("m")))))
    assert found == "W, step 's', catch, step 'sys.log': no enclosing scope declares $.m"


def test_the_catch_of_a_workflow_does_not_see_the_steps_of_its_body() -> None:
    flow = workflow("W", "", "out", block(step("s", "E", x=1)))
    assert problems(E, catching(flow, log(said=of("s.y")))) == [
        "W, catch, step 'sys.log': unknown step 's'"
    ]


def test_an_always_block_yields_nothing() -> None:
    inner = step("t", "E", block(yields=[to("E", y=1)]), x=1)
    link(E, workflow("W", "", "out", block(always(step("s", "E", x=1), inner))))
    outward = step("t", "E", block(yields=[to("W", out=1)]), x=1)
    assert in_workflow(block(always(step("s", "E", x=1), outward))) == [
        "W, step 's', always, step 't': an always block yields nothing: its step has its results"
    ]


def test_a_step_cannot_wait_in_its_catch_for_a_step_that_waits_for_it() -> None:
    (found,) = in_workflow(
        block(catching(step("s", "E", x=1), log(said=of("t.y"))), step("t", "E", x=of("s.y")))
    )
    assert "wait for each other in a cycle" in found


@pytest.mark.parametrize(
    "body",
    [
        when(case(given("n"), step("f", "F", n=1)), default()),
        block(step("f", "F", n=1), foreach=("i", given("n"))),
        block(catching(step("s", "E", x=1), step("f", "F", n=1))),
    ],
)
def test_a_facet_may_call_itself_where_the_call_is_not_always_made(body: Node) -> None:
    link(E, facet("F", "n", "", body))


def test_a_facet_may_not_call_itself_in_an_always_block() -> None:
    (found,) = problems(
        E, facet("F", "n", "", block(always(step("s", "E", x=1), step("f", "F", n=1))))
    )
    assert found == "F: calls itself without end: F → F is a cycle"


# --- schemas, implicits and mixins ---

SPOT = schema("Spot", "lat:Double tags:[String]")


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        (step("s", "Spot", lat=1), "'Spot' needs an argument 'tags'"),
        (step("s", "Spot", lat=1, tags=[], up=1), "'Spot' has no parameter 'up'"),
        (
            step("s", "Spot", lat="x", tags=[]),
            "argument 'lat' of 'Spot': expected Double, found 'x'",
        ),
        (mixed(step("s", "Spot", lat=1, tags=[]), "M"), "'Spot' is a schema, and takes no mixins"),
    ],
)
def test_an_instance_must_fit_its_schema(statement: Node, problem: str) -> None:
    assert problems(SPOT, workflow("W", "", "", block(statement))) == [f"W, step 's': {problem}"]


def test_a_field_that_the_schema_has_not_is_refused() -> None:
    made = step("s", "Spot", lat=1, tags=[])
    assert problems(SPOT, workflow("W", "", "", block(made, log(said=of("s.up"))))) == [
        "W, step 'sys.log': 's' has no field 'up': 'Spot' has lat, tags"
    ]


def test_a_literal_for_a_schema_must_have_its_fields() -> None:
    value = {"type": "MapLiteral", "entries": [{"key": "lat", "value": 1}]}
    (found,) = problems(
        SPOT, event("E", "at:Spot"), workflow("W", "", "", block(step("s", "E", at=value)))
    )
    assert found == "W, step 's': argument 'at' of 'E': expected Spot, which has 'tags'"


def test_an_input_of_a_schema_is_checked_with_its_fields() -> None:
    plan = link(SPOT, workflow("W", "at:Spot"))
    check_inputs(plan.workflow("W"), {"at": {"lat": 1.5, "tags": ["a"]}})
    with pytest.raises(InvalidInputs, match="'at': tags: item 0: expected String, found 7"):
        check_inputs(plan.workflow("W"), {"at": {"lat": 1.5, "tags": [7]}})


def test_an_implicit_must_be_for_a_facet_and_constant() -> None:
    found = problems(E, SPOT, implicit("E", z=1), implicit("Spot"), implicit("E", x=given("n")))
    assert found == [
        "implicit of_E: 'E' has no parameter 'z'",
        "implicit of_Spot: 'Spot' is a schema, not a facet",
        "implicit of_E: argument 'x' must be a constant: it holds for every call",
    ]


def test_two_implicits_for_the_same_facet_are_ambiguous_unless_one_is_nearer() -> None:
    flow = workflow("W", "", "", block(step("s", "E")))
    near = namespace("a", implicit("E", x=1), flow)
    link(E, near, namespace("b", implicit("E", x=2)))
    found, _ = problems(
        E, flow, namespace("a", implicit("E", x=1)), namespace("b", implicit("E", x=2))
    )
    assert found == (
        "W, step 's': the implicit arguments of 'E' are ambiguous: a.of_E and b.of_E give them"
    )


def test_a_mixin_with_an_alias_must_be_declared_and_fit() -> None:
    found = problems(
        E,
        workflow(
            "W",
            "",
            "",
            block(
                mixed(step("s", "E", x=1), "Nobody", "m"),
                mixed(step("t", "E", x=1), "E", "m", z=1),
                mixed(step("u", "E", x=1), "E", "x", x=1),
                mixed(step("v", "E", x=1), "Nobody"),
            ),
        ),
    )
    assert found == [
        "W, step 's': unknown facet 'Nobody'",
        "W, step 't': 'E' has no parameter 'z'",
        "W, step 'u': the name 'x' of a mixin is taken already",
    ]


def test_a_call_must_give_the_arguments_that_a_mixin_of_the_signature_lacks() -> None:
    loaf = signed(facet("Loaf"), "E", "e")
    link(E, loaf, workflow("W", "", "", block(mixed(step("s", "Loaf"), "E", "e", x=1))))
    assert problems(E, loaf, workflow("W", "", "", block(step("s", "Loaf")))) == [
        "W, step 's': mixin 'e' of 'Loaf' needs 'x'"
    ]
    assert problems(E, signed(workflow("W"), "E", "e")) == [
        "W, mixin 'e': 'E' needs an argument 'x'"
    ]


def test_a_facet_may_not_mix_in_itself() -> None:
    (found,) = problems(signed(facet("F"), "F", "f"))
    assert found == "F: calls itself without end: F → F is a cycle"


def test_a_mixin_of_a_signature_reads_the_parameters_alone() -> None:
    found = problems(
        E, signed(signed(facet("F", "n"), "E", "a", x=given("n")), "E", "b", x=given("a.y"))
    )
    assert found == ["F, mixin 'b': no enclosing scope declares $.a"]


def test_the_arguments_of_a_mixin_without_an_alias_are_checked_like_others() -> None:
    speed = facet("Speed", "hours:Long lane")
    ship = event("Ship", ["item", {"name": "hours", "type": "Long", "default": 48}])
    found = problems(
        speed,
        ship,
        workflow(
            "W",
            "n",
            "",
            block(
                mixed(step("a", "Ship", item=1), "Speed", hours=1, lnae=2),
                mixed(step("b", "Ship", item=1), "Speed", hours="six"),
                mixed(step("c", "Ship", item=1), "Speed", hours=given("nope")),
                mixed(step("d", "Ship", item=1), "Speed", hours=1, lane=of("nobody.y")),
                mixed(step("e", "Ship", item=1), "Undeclared", houres=1, hours=2),
                mixed(step("f", "Ship", item=1, hours=1), "Speed", lane=given("nope")),
            ),
        ),
    )
    assert found == [
        "W, step 'a': 'Speed' has no parameter 'lnae'; did you mean 'lane'?",
        "W, step 'b': argument 'hours' of 'Speed': expected Long, found 'six'",
        "W, step 'b': argument 'hours' of 'Ship': expected Long, found 'six'",
        "W, step 'e': 'Ship' has no parameter 'houres'; did you mean 'hours'?, and its mixin "
        "'Undeclared' is not declared",
        "W, step 'c': no enclosing scope declares $.nope",
        "W, step 'd': unknown step 'nobody'",
        "W, step 'f': no enclosing scope declares $.nope",
    ]


def test_the_arguments_of_a_mixin_of_a_signature_are_checked_like_others() -> None:
    found = problems(
        E,
        signed(facet("F", "n"), "E", x=given("nope")),
        signed(facet("G", "n"), "E", z=1),
        signed(facet("H", "n"), "Undeclared", anything=given("m")),
        signed(facet("I", "n"), "Timeout", minutes=1),
    )
    assert found == [
        "F, mixin 'E': no enclosing scope declares $.nope",
        "G, mixin 'E': 'E' has no parameter 'z'",
        "H, mixin 'Undeclared': no enclosing scope declares $.m",
    ]


def test_a_mixin_that_is_a_schema_is_refused() -> None:
    call = mixed(step("s", "E", x=1), "Spot", lat=1)
    assert problems(E, SPOT, workflow("W", "", "", block(call))) == [
        "W, step 's': the mixin 'Spot' is a schema, not a facet"
    ]


def test_a_mixin_with_an_alias_fills_the_parameter_of_its_name() -> None:
    policy, send = facet("Policy", "n:Long"), event("Send", "to retry")
    call = mixed(step("s", "Send", to="me"), "Policy", "retry", n=3)
    plan = link(policy, send, workflow("W", "", "", block(call)))
    assert [name for name, _ in plan.statements["W/0/s"].arguments] == ["to", "retry"]
    both = mixed(step("s", "Send", to="me", retry=1), "Policy", "retry", n=3)
    assert problems(policy, send, workflow("W", "", "", block(both))) == [
        "W, step 's': the name 'retry' of a mixin is taken already"
    ]
    typed = event("Send", "to retry:Long")
    assert problems(policy, typed, workflow("W", "", "", block(call))) == [
        "W, step 's': argument 'retry' of 'Send': expected Long, found a map"
    ]


def test_a_mixin_of_a_signature_fills_the_parameter_of_its_name() -> None:
    send = signed(event("Send", "to e"), "E", "e", x=1)
    link(E, send, workflow("W", "", "", block(step("s", "Send", to="me"))))
    assert problems(E, send, workflow("W", "", "", block(step("s", "Send", to="me", e=1)))) == [
        "W, step 's': argument 'e' of 'Send' is filled by its mixin of that name"
    ]
    started = link(E, signed(workflow("W", "n e"), "E", "e", x=1)).workflow("W")
    check_inputs(started, {"n": 1})
    with pytest.raises(InvalidInputs, match="input 'e' is filled by the mixin of that name"):
        check_inputs(started, {"n": 1, "e": 2})


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("M", "a mixin without an alias, which has no results of its own; write `with M(…) as"),
        ("N", "which is mixed in several times, as one and two; yield to one of these"),
        ("O", "a mixin with the alias 'o'; yield to 'o'"),
    ],
)
def test_a_yield_to_a_mixin_is_refused_with_the_reason(target: str, why: str) -> None:
    mixins = (facet("M", "", "m"), facet("N", "", "m"), facet("O", "", "m"))
    flow = signed(workflow("W", "", "out", block(yields=[to(target, m=1)])), "M")
    flow = signed(signed(flow, "N", "one"), "N", "two")
    inner = mixed(step("s", "E", block(yields=[to(target, m=1)]), x=1), "O", "o")
    if target == "O":
        flow = workflow("W", "", "out", block(inner))
    (found,) = problems(E, *mixins, flow)
    assert why in found


# --- namespaces and types ---


def test_a_used_namespace_must_be_declared() -> None:
    found = problems(
        namespace("shop.orders", E),
        namespace("a", facet("F"), uses=["shop.order", "shop.orders"]),
        namespace("b", facet("F"), uses=["elsewhere"]),
    )
    assert found == [
        "namespace 'a': uses 'shop.order', which no file of the program declares; did you mean "
        "'shop.orders'?",
        "namespace 'b': uses 'elsewhere', which no file of the program declares",
    ]


def test_an_unknown_type_is_refused_with_the_nearest_name() -> None:
    found = problems(
        schema("Spot", "at:Sting"),
        facet("F", "a:Lnog b:[[Spott]]", "c:Elsewhere"),
        event("G", "a:Spot b:[F] c:Json d:Double"),
    )
    assert found == [
        "Spot, field 'at': unknown type 'Sting'; did you mean 'String'?",
        "F, parameter 'a': unknown type 'Lnog'; did you mean 'Long'?",
        "F, parameter 'b': unknown type 'Spott'; did you mean 'Spot'?",
        "F, return 'c': unknown type 'Elsewhere'",
    ]


def test_an_ambiguous_schema_is_refused() -> None:
    spots = namespace("a", schema("Spot", "x:Long")), namespace("b", schema("Spot", "y:Long"))
    assert problems(*spots, facet("F", "at:Spot")) == [
        "F, parameter 'at': the type 'Spot' is ambiguous: a.Spot and b.Spot have that name; write "
        "the qualified name"
    ]
    link(*spots, facet("F", "at:b.Spot"))


def made_of(**entries: Any) -> Node:
    pairs = [{"key": key, "value": value} for key, value in entries.items()]
    return {"type": "MapLiteral", "entries": pairs}


def test_the_schema_of_the_own_namespace_is_the_type() -> None:
    given_y = listed(made_of(y=1))
    found = problems(
        namespace("a", schema("Spot", "x:Long")),
        namespace("b", schema("Spot", "y:Long"), event("G", "at:Spot in:[a.Spot]")),
        workflow("W", "", "", block(step("s", "G", **{"at": made_of(x=1), "in": given_y}))),
    )
    assert found == [
        "W, step 's': argument 'at' of 'b.G': expected b.Spot, which has 'y'",
        "W, step 's': argument 'in' of 'b.G': item 0: expected a.Spot, which has 'x'",
    ]


def test_a_field_that_a_schema_declares_twice_is_refused() -> None:
    assert problems(schema("Spot", "x:Long y x:String")) == ["Spot: declares the field 'x' twice"]


# --- yields of names and types that are declared ---


def test_a_yield_of_an_undeclared_name_is_refused() -> None:
    assert in_workflow(block(yields=[to("W", oo=1)])) == [
        "W: yields to 'W', which does not return 'oo' but out"
    ]
    assert in_workflow(block(step("s", "E", block(yields=[to("E", z=1)]), x=1))) == [
        "W, step 's': yields to 'E', which does not return 'z' but y"
    ]
    flour = facet("Flour", "", "net")
    bread = signed(facet("Loaf", "", "", block(yields=[to("f", nte=1)])), "Flour", "f")
    assert problems(flour, bread) == [
        "Loaf: yields to 'f', which does not return 'nte' but net; did you mean 'net'?"
    ]


def test_a_literal_of_the_wrong_type_is_not_yielded() -> None:
    assert problems(workflow("W", "", "out:Long", block(yields=[to("W", out="one")]))) == [
        "W: yields to 'W', return 'out': expected Long, found 'one'"
    ]


@pytest.mark.parametrize(
    "declared",
    [
        [workflow("W", "", "out", block(yields=[to("W", oo=1)]))],
        [namespace("a", facet("F"), uses=["elsewhere"])],
        [facet("F", "a:Elsewhere")],
        [schema("Spot", "x x")],
        [E, workflow("W", "", "", block(mixed(step("s", "E", x=1), "Nobody", y=given("nope"))))],
        [E, signed(facet("F", "n"), "E", x=given("nope"))],
    ],
)
def test_a_stored_program_keeps_its_meaning(declared: list[Node]) -> None:
    """An earlier version accepted it, and its run goes on."""
    problems(*declared)
    link_program(parse_program(program(*declared)), is_stored=True)


# --- several, and what is not executed ---


def test_several_problems_are_reported_all_at_once() -> None:
    found = problems(
        E,
        facet("F", "a:Long", "b"),
        workflow(
            "W",
            "n",
            "out",
            block(
                step("s", "Nobody"),
                step("t", "E", x=given("m")),
                step("u", "F", a="one"),
                step("v", "E", x=of("u.c")),
                yields=[to("F", b=1)],
            ),
        ),
    )
    assert found == [
        "W, step 's': unknown facet 'Nobody'",
        "W, step 'u': argument 'a' of 'F': expected Long, found 'one'",
        "W, step 't': no enclosing scope declares $.m",
        "W, step 'v': 'u' has no attribute 'c': 'F' declares a, b",
        "W: yields to 'F', which is neither an enclosing facet nor its mixin",
    ]


SCRIPT = {"type": "ScriptBlock", "code": "pass"}


NO_SCRIPTS = (
    "F: uses a script block; scripts are run only where the setting `scripts` is on "
    "(FLOWENGINE_SCRIPTS=on)"
)


@pytest.mark.parametrize(
    "declaration",
    [
        facet("F") | {"pre_script": SCRIPT},
        facet("F") | {"body": [SCRIPT]},
        facet("F", "", "", {"type": "AndThenBlock", "script": SCRIPT}),
    ],
)
def test_scripts_must_be_allowed(declaration: Node) -> None:
    assert problems(E, declaration) == [NO_SCRIPTS]
    link_program(parse_program(program(E, declaration)), allow_scripts=True)


def test_scripts_have_one_language() -> None:
    script = facet("F") | {"pre_script": SCRIPT | {"language": "perl"}}
    with pytest.raises(InvalidProgram, match="the only language of scripts is 'python'"):
        link_program(parse_program(program(script)), allow_scripts=True)


def test_a_prompt_names_parameters_of_its_event_facet() -> None:
    body = {"type": "PromptBlock", "template": "{x} {{y}}", "system": "{z} {"}
    assert problems(event("F", "x") | {"body": body}) == [
        "F: the system of its prompt names the unknown parameter 'z' (it takes: x)",
        "F: the system of its prompt has a single '{' at character 5; write {{",
    ]


def test_only_an_event_facet_has_a_prompt() -> None:
    prompt = facet("F") | {"body": {"type": "PromptBlock", "template": "x"}}
    assert problems(prompt) == ["F: has a prompt block, which only an event facet may have"]


@pytest.mark.parametrize(
    "around",
    [
        block(step("s", "E", SCRIPT, x=1)),
        block(catching(step("s", "E", x=1), step("t", "E", SCRIPT, x=1))),
        block(step("s", "E", x=1) | {"always": SCRIPT}),
        when(default(step("t", "E", SCRIPT, x=1))),
    ],
)
def test_a_script_is_found_wherever_it_stands(around: Node) -> None:
    assert problems(E, facet("F", "", "", around)) == [NO_SCRIPTS]


def test_a_schema_may_be_declared() -> None:
    link({"type": "SchemaDecl", "name": "S", "fields": []}, workflow("W", "s:S"))


# --- the plan ---


def test_a_step_that_needs_one_step_of_its_block_is_written_when_that_has_ended() -> None:
    plan = link(
        E,
        workflow(
            "W",
            "n",
            "",
            block(
                step("a", "E", x=given("n")),
                step("b", "E", x=of("a.y")),
                step("c", "E", x=op(of("a.y"), "+", of("b.y"))),
            ),
        ),
    )
    lazy = {name: plan.statements[f"W/0/{name}"].is_lazy for name in "abc"}
    assert lazy == {"a": False, "b": True, "c": False}


def test_a_foreach_over_the_result_of_an_earlier_block_reads_it_from_its_container() -> None:
    plan = link(
        E,
        workflow(
            "W",
            "",
            "",
            block(step("s", "E", x=1)),
            block(step("t", "E", x=given("v")), foreach=("v", of("s.y"))),
        ),
    )
    foreach = plan.blocks["W/1"].foreach
    assert foreach is not None
    assert foreach.needs == (StepSource(0, ".block-0.s"),)


def test_a_step_that_both_the_list_and_the_items_name_is_waited_for_once() -> None:
    plan = link(
        E,
        workflow(
            "W",
            "",
            "out",
            block(step("s", "E", x=1), step("u", "E", x=1)),
            block(
                step("t", "E", x=listed(of("s.y"), of("u.y"))),
                yields=[to("W", out=of("s.y"))],
                foreach=("v", of("s.y")),
            ),
        ),
    )
    edges = plan.statements["W/0/s"].edges
    assert [(edge.kind, edge.row.kind) for edge in edges] == [(EdgeKind.NEEDS, RowKind.FAN)]
    edges = plan.statements["W/0/u"].edges
    assert [(edge.kind, edge.row.kind) for edge in edges] == [(EdgeKind.AWAITS, RowKind.FAN)]


def test_statements_without_a_name_get_numbered_ones() -> None:
    plan = link(workflow("W", "", "", block(log(a=1), check(True), log(a=2))))
    assert list(plan.statements) == ["W/0/sys.log", "W/0/sys.assert", "W/0/sys.log_2"]


# --- starting ---


def test_a_workflow_is_found_by_its_qualified_name_or_its_only_short_name() -> None:
    plan = link(namespace("a", workflow("W"), workflow("V")), namespace("b", workflow("V")))
    assert plan.workflow("W") is plan.workflow("a.W")
    with pytest.raises(UnknownWorkflow) as caught:
        plan.workflow("V")
    assert str(caught.value) == "the program has no workflow 'V'; it declares: a.V, a.W, b.V"


def test_a_facet_that_is_no_workflow_cannot_be_started() -> None:
    with pytest.raises(UnknownWorkflow):
        link(E).workflow("E")


def test_inputs_that_do_not_fit_are_refused_all_at_once() -> None:
    plan = link(workflow("W", ["amount:Long", "who:String", {"name": "n", "default": 1}]))
    with pytest.raises(InvalidInputs) as caught:
        check_inputs(plan.workflow("W"), {"amuont": 1, "who": 3})
    assert caught.value.problems == [
        "unknown input 'amuont'; did you mean 'amount'? (it takes: amount, who, n)",
        "input 'amount' is missing and has no default",
        "input 'who': expected String, found 3",
    ]


def test_null_is_an_input_like_any_other() -> None:
    check_inputs(link(workflow("W", "amount:Long")).workflow("W"), {"amount": None})
