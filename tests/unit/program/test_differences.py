"""A stored program is compared with today's code."""

from __future__ import annotations

from flowengine.program import link_program, parse_program
from flowengine.program.differences import Difference, FacetCode, changed_facets, refused_calls
from flowengine.program.nodes import Field, Literal
from flowengine.program.plan import Plan
from tests.builders import block, event, facet, given, of, program, step, to, workflow

NAMES = ("x", "y")


def plan(*declarations: object, target: str = "E") -> Plan:
    body = block(step("s", target, x=given("n")), yields=[to("W", out=of("s.y"))])
    return link_program(
        parse_program(program(*declarations, workflow("W", "n:Long", "out", body)))  # type: ignore[arg-type]
    )


STORED = plan(event("E", "x:Long", "y:Long"))
SAME = FacetCode((Field("x", "Long"),), (Field("y", "Long"),))


def refused(code: FacetCode) -> list[Difference]:
    return list(refused_calls(STORED, {"E": code}))


def test_the_same_code_is_no_difference() -> None:
    assert refused(SAME) == []
    assert list(changed_facets(STORED, plan(event("E", "x:Long", "y:Long")))) == []


def test_a_facet_without_code_breaks() -> None:
    (found,) = refused_calls(STORED, {})
    assert found == Difference("E", "has no code: its steps wait for ever", breaks=True)


def test_a_removed_and_a_new_required_parameter_break() -> None:
    code = FacetCode((Field("z", "Long"),), SAME.returns)
    assert [found.what for found in refused(code)] == [
        "no longer takes 'x', which is sent",
        "needs 'z', which is not sent",
    ]
    assert all(found.breaks for found in refused(code))


def test_a_new_parameter_with_a_default_breaks_nothing() -> None:
    code = FacetCode((*SAME.params, Field("z", "Long", Literal(1))), SAME.returns)
    assert refused(code) == []


def test_another_type_breaks_and_another_result_is_reported() -> None:
    code = FacetCode((Field("x", "String"),), (Field("y", "String"),))
    assert [(found.what, found.breaks) for found in refused(code)] == [
        ("takes String for 'x', Long is sent", True),
        ("returns another type", False),
    ]


def test_facets_that_came_went_and_changed_are_listed() -> None:
    other = facet("F", "x:Long", "y:Long", block(yields=[to("F", y=given("x"))]))
    found = list(changed_facets(STORED, plan(other, target="F")))
    assert found == [
        Difference("E", "is no longer called"),
        Difference("F", "is called now"),
        Difference("W", "has another body"),
    ]


def test_a_function_whose_version_has_no_code_breaks_with_the_cure() -> None:
    stored = plan(event("shop.E@1", "x:Long", "y:Long"), target="shop.E@1")
    (found,) = refused_calls(stored, {"shop.E@2": SAME, "shop.E@3": SAME, "shop.F@1": SAME})
    assert found.breaks
    assert found.what == (
        "has no code; the code has version 2, 3: its runs wait for ever; keep the earlier function "
        "as @workflow(name='shop.E', version=1)"
    )
    (other,) = refused_calls(stored, {})
    assert other.what.startswith("has no code: its runs wait for ever")


def test_a_function_with_another_source_is_changed() -> None:
    def function(digest: str) -> Plan:
        options = {"version": 1, "source_digest": digest}
        declared = event("E@1", "x:Long", "y:Long") | {"function": options}
        return plan(declared, target="E@1")

    (found,) = changed_facets(function("a"), function("b"))
    assert found == Difference("E@1", "has another source")
    assert list(changed_facets(function("a"), function("a"))) == []
