"""foreach: a block for each item, and the visibility of its symbols."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.authoring import event_facet, facet, foreach, workflow
from flowengine.errors import AuthoringError, SymbolMisuse
from flowengine.program.nodes import (
    Argument,
    ArrayLiteral,
    ArrayType,
    Binary,
    Call,
    FacetKind,
    Field,
    ForeachClause,
    Index,
    InputRef,
    Literal,
    StepRef,
)
from tests.unit.authoring.compiled import block, declarations, steps, yielded


@event_facet
def fetch(url: str) -> str:
    return url.upper()


@event_facet
def join(a: Any, b: Any) -> str:
    return f"{a}{b}"


@workflow
def fetch_all(urls: list[str]) -> list[str]:
    return foreach(urls, lambda url: fetch(url))


def test_a_foreach_is_a_step_with_a_body_for_each_item() -> None:
    (step,) = steps(block(fetch_all))
    assert step.name == "foreach"
    assert step.call == Call("flowengine.foreach", (Argument("items", InputRef(("urls",))),))
    (body,) = step.body
    assert body.foreach == ForeachClause("url", InputRef(("items",)))
    assert [s.name for s in steps(body)] == ["fetch"]
    (one,) = body.yields
    assert one.call.target == "flowengine.foreach"
    assert yielded(body) == ArrayLiteral((StepRef(("fetch", "result")),))
    assert yielded(block(fetch_all)) == StepRef(("foreach", "result"))


def test_the_foreach_facet_is_declared_by_programs_that_use_it() -> None:
    declared = declarations(fetch_all)["flowengine.foreach"]
    assert declared.kind is FacetKind.FACET
    assert declared.params == (Field("items", ArrayType("Json")),)
    assert declared.returns == (Field("result", ArrayType("Json")),)


def test_a_facet_can_be_the_body() -> None:
    @workflow(name="t.w")
    def w(urls: list[str]) -> list[str]:
        return foreach(urls, fetch)

    assert steps(block(w)) == steps(block(fetch_all))


def test_a_python_list_becomes_a_literal() -> None:
    @workflow(name="t.w")
    def w(a: int) -> list[Any]:
        return [
            foreach(range(2), lambda n: n + a),
            foreach([a, 1], lambda n: n, name="each"),
        ]

    first, second = steps(block(w))
    assert first.call.arguments[0].value == Literal([0, 1])
    assert second.name == "each"
    assert second.call.arguments[0].value == ArrayLiteral((InputRef(("a",)), Literal(1)))


def test_a_body_sees_outer_steps_and_parameters_and_shadows_none() -> None:
    @workflow(name="t.w")
    def w(url: str, urls: list[str]) -> list[str]:
        first = fetch(url)
        return foreach(urls, lambda url: join(first, fetch(url)))

    body = steps(block(w))[1].body[0]
    assert body.foreach is not None
    assert body.foreach.variable == "url_2"
    inner, joined = steps(body)
    assert inner.name == "fetch_2"
    assert inner.call.arguments[0].value == InputRef(("url_2",))
    assert [a.value for a in joined.call.arguments] == [
        StepRef(("fetch", "result")),
        StepRef(("fetch_2", "result")),
    ]


def test_sibling_loops_use_the_same_names() -> None:
    @workflow(name="t.w")
    def w(urls: list[str]) -> list[Any]:
        return [foreach(urls, lambda u: fetch(u)), foreach(urls, lambda u: fetch(u))]

    one, other = steps(block(w))
    assert (one.name, other.name) == ("foreach", "foreach_2")
    assert one.body == other.body


def test_loops_nest_with_distinct_variables() -> None:
    @workflow(name="t.w")
    def w(rows: list[list[int]]) -> list[list[int]]:
        return foreach(rows, lambda x: foreach(x, lambda x: x + 1))

    (outer,) = steps(block(w))
    (inner,) = steps(outer.body[0])
    assert inner.call.arguments[0].value == InputRef(("x",))
    assert inner.body[0].foreach == ForeachClause("x_2", InputRef(("items",)))
    assert yielded(inner.body[0]) == ArrayLiteral((Binary("+", InputRef(("x_2",)), Literal(1)),))


def test_a_variable_named_items_is_renamed() -> None:
    @workflow(name="t.w")
    def w(rows: list[int]) -> list[int]:
        return foreach(rows, lambda items: items)

    body = steps(block(w))[0].body[0]
    assert body.foreach == ForeachClause("items_2", InputRef(("items",)))
    assert yielded(body) == ArrayLiteral((InputRef(("items_2",)),))


def test_a_parameter_named_items_is_usable_only_as_the_list() -> None:
    @workflow(name="t.fine")
    def fine(items: list[int]) -> list[str]:
        return foreach(items, lambda item: join(item, items))

    @workflow(name="t.hidden")
    def hidden(items: list[int], rows: list[int]) -> list[str]:
        return foreach(rows, lambda row: join(row, [items]))

    assert declarations(fine)
    with pytest.raises(SymbolMisuse, match=r"'items' cannot be used inside foreach step 'foreach'"):
        hidden.program()


def test_a_symbol_used_outside_its_lambda_is_refused() -> None:
    kept: list[Any] = []

    @workflow(name="t.leak")
    def leak(urls: list[str]) -> list[str]:
        foreach(urls, lambda url: kept.append(fetch(url)))
        return [fetch.named("again")(kept[0])]

    with pytest.raises(
        SymbolMisuse, match=r"test_foreach\.py:\d+: step 'fetch' escapes its lambda.*'foreach'"
    ):
        leak.program()


def test_a_symbol_used_after_its_trace_is_refused() -> None:
    kept: list[Any] = []

    @workflow(name="t.first")
    def first(url: str) -> None:
        kept.append(url)

    @workflow(name="t.second")
    def second(url: str) -> Any:
        return join(kept[0], url)

    @workflow(name="t.third")
    def third(url: str) -> Any:
        return kept[0] + url

    first.program()
    for use in (
        second.program,
        third.program,
        lambda: fetch(kept[0]),
        lambda: foreach(kept[0], id),
    ):
        with pytest.raises(SymbolMisuse, match=r"parameter 'url' escapes its function.*'t.first'"):
            use()


@pytest.mark.parametrize("body", [lambda: 1, lambda a, b: 1, lambda *a: 1, lambda *, a: 1, dict])
def test_a_body_takes_one_parameter(body: Any) -> None:
    @workflow(name="t.w")
    def w(urls: list[str]) -> list[Any]:
        return foreach(urls, body)

    with pytest.raises(AuthoringError, match="the body of foreach takes one parameter"):
        w.program()


def test_a_body_may_bind_a_loop_variable_as_default() -> None:
    @workflow(name="t.w")
    def w(urls: list[str]) -> list[Any]:
        return [foreach(urls, lambda u, n=n: join(u, n)) for n in (1, 2)]  # type: ignore[misc]

    assert [s.body[0].foreach.variable for s in steps(block(w)) if s.body[0].foreach] == ["u", "u"]


def test_a_value_that_is_not_iterable_is_refused() -> None:
    @workflow(name="t.w")
    def w() -> list[Any]:
        return foreach(5, fetch)  # type: ignore[arg-type]

    with pytest.raises(AuthoringError, match="foreach cannot iterate over 5"):
        w.program()


def test_a_plain_facet_has_its_own_loops() -> None:
    @facet(name="t.f")
    def f(urls: list[str]) -> list[str]:
        return foreach(urls, fetch)

    @workflow(name="t.w")
    def w(urls: list[str]) -> list[str]:
        return f(urls)

    assert set(declarations(w)) == {"flowengine.foreach", fetch.name, "t.f", "t.w"}


def test_outside_a_trace_it_is_a_list_comprehension() -> None:
    assert fetch_all.fn(["a", "b"]) == ["A", "B"]
    assert foreach((n for n in (1, 2)), lambda n: n + 1) == [2, 3]


def test_a_limit_is_part_of_the_clause() -> None:
    @workflow(name="t.w")
    def w(urls: list[str], most: int) -> list[Any]:
        return [
            foreach(urls, lambda u: fetch(u), limit=3),
            foreach(urls, lambda u: fetch(u), limit=most + 1),
        ]

    fixed, computed = (step.body[0].foreach for step in steps(block(w)))
    assert fixed == ForeachClause("u", InputRef(("items",)), limit=Literal(3))
    assert computed is not None
    assert computed.limit == Binary("+", InputRef(("most",)), Literal(1))


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, "3"])
def test_an_invalid_limit_is_refused(limit: Any) -> None:
    with pytest.raises(AuthoringError, match=r"test_foreach.py:\d+: foreach\(limit=.* 1 or more"):
        foreach([1], lambda n: n, limit=limit)


def test_collect_errors_returns_results_and_errors() -> None:
    @workflow(name="t.w")
    def w(urls: list[str]) -> list[Any]:
        found = foreach(urls, lambda u: fetch(u), collect_errors=True)
        return [found.results, found.errors, found.errors[0].message, foreach(urls, fetch)]

    first, second = steps(block(w))
    assert first.body[0].foreach == ForeachClause("u", InputRef(("items",)), collect_errors=True)
    assert second.body[0].foreach == ForeachClause("url", InputRef(("items",)))
    errors = StepRef(("foreach", "errors"))
    message = Index(Index(errors, Literal(0)), Literal("message"))
    other = StepRef(("foreach_2", "result"))
    assert yielded(block(w)) == ArrayLiteral(
        (StepRef(("foreach", "result")), errors, message, other)
    )
    assert [field.name for field in declarations(w)["flowengine.foreach"].returns] == [
        "result",
        "errors",
    ]


def test_outside_a_workflow_collect_errors_works_too() -> None:
    found = foreach(["a", "", "b"], lambda text: text[0], collect_errors=True)
    assert found.results == ["a", "b"]
    (error,) = found.errors
    assert (error.index, error.type) == (1, "IndexError")
