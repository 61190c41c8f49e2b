"""when: one of several branches, each with its own steps."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.authoring import event_facet, foreach, when, workflow
from flowengine.errors import AuthoringError, SymbolMisuse, UntraceableCode
from flowengine.program.nodes import (
    ArrayLiteral,
    Binary,
    Block,
    Call,
    FacetKind,
    Field,
    Index,
    InputRef,
    Literal,
    StepRef,
    StepStatement,
    WhenCase,
)
from tests.unit.authoring.compiled import block, declarations, steps, yielded


@event_facet
def approve(total: int) -> str:
    return f"approved {total}"


@event_facet
def ask(total: int) -> str:
    return f"asked about {total}"


@event_facet
def pair(total: int) -> tuple[int, str]:
    return total, "x"


@workflow
def decide(total: int) -> str:
    return when(total > 100, lambda: ask(total), otherwise=lambda: approve(total))


def names(case: WhenCase) -> list[str]:
    return [s.name for s in case.statements if isinstance(s, StepStatement)]


def value(case: WhenCase) -> Any:
    return yielded(Block(yields=case.yields))


def test_a_when_is_a_step_with_a_case_for_each_branch() -> None:
    (step,) = steps(block(decide))
    assert step.name == "when"
    assert step.call == Call("flowengine.when")
    (body,) = step.body
    assert body.first_match
    large, other = body.cases
    assert large.condition == Binary(">", InputRef(("total",)), Literal(100))
    assert names(large) == ["ask"]
    assert value(large) == StepRef(("ask", "result"))
    assert other.condition is None
    assert names(other) == ["approve"]
    assert {y.call.target for case in body.cases for y in case.yields} == {"flowengine.when"}
    assert yielded(block(decide)) == StepRef(("when", "result"))


def test_the_when_facet_is_declared_by_programs_that_use_it() -> None:
    declared = declarations(decide)["flowengine.when"]
    assert declared.kind is FacetKind.FACET
    assert declared.params == ()
    assert declared.returns == (Field("result"),)


def test_several_cases_keep_their_order() -> None:
    @workflow(name="t.w")
    def w(total: int) -> str:
        return when(
            (total > 1000, "refused"),
            (total > 100, lambda: ask(total)),
            otherwise=lambda: approve(total),
            name="size",
        )

    (step,) = steps(block(w))
    assert step.name == "size"
    first, second, last = step.body[0].cases
    assert first.condition == Binary(">", InputRef(("total",)), Literal(1000))
    assert (names(first), value(first)) == ([], Literal("refused"))
    assert names(second) == ["ask"]
    assert names(last) == ["approve"]


def test_then_works_by_keyword_and_values_need_no_lambda() -> None:
    @workflow(name="t.w")
    def w(total: int, known: str) -> str | None:
        return when(total == 0, then=known, otherwise=None)

    then, otherwise = steps(block(w))[0].body[0].cases
    assert value(then) == InputRef(("known",))
    assert value(otherwise) == Literal(None)


def test_a_facet_without_parameters_can_be_a_branch() -> None:
    @event_facet(name="t.stop")
    def stop() -> str:
        return "stopped"

    @workflow(name="t.w")
    def w(total: int) -> str:
        return when(total > 0, lambda: approve(total), otherwise=stop)

    assert names(steps(block(w))[0].body[0].cases[1]) == ["stop"]


def test_branches_nest_and_their_steps_have_distinct_names() -> None:
    @workflow(name="t.w")
    def w(totals: list[int]) -> list[str]:
        return foreach(
            totals,
            lambda total: when(
                total > 10,
                lambda: when(total > 100, lambda: ask(total), otherwise=lambda: approve(total)),
                otherwise=lambda: approve(total),
            ),
        )

    outer = steps(steps(block(w))[0].body[0])[0]
    inner, other = outer.body[0].cases
    assert names(inner) == ["when_2"]
    assert names(other) == ["approve"]
    (nested,) = [s for s in inner.statements if isinstance(s, StepStatement)]
    assert [names(case) for case in nested.body[0].cases] == [["ask"], ["approve"]]


def test_without_otherwise_there_is_an_empty_last_case_and_no_value() -> None:
    @workflow(name="t.fine")
    def fine(total: int) -> int:
        when(total > 100, lambda: ask(total))
        return total

    *_, last = steps(block(fine))[0].body[0].cases
    assert (last.condition, names(last), value(last)) == (None, [], Literal(None))

    def returned(total: int) -> Any:
        return when(total > 100, lambda: ask(total))  # type: ignore[func-returns-value]

    def passed(total: int) -> Any:
        asked: Any = when(total > 100, lambda: ask(total))  # type: ignore[func-returns-value]
        return approve(asked)

    def computed(total: int) -> Any:
        asked: Any = when(total > 100, lambda: ask(total))  # type: ignore[func-returns-value]
        return asked.size + 1

    for body in (returned, passed, computed):
        with pytest.raises(SymbolMisuse, match=r"has no value: `when` without `otherwise`.*=None"):
            workflow(name=f"t.{body.__name__}")(body).program()


def test_a_symbol_used_outside_its_branch_is_refused() -> None:
    kept: list[Any] = []

    @workflow(name="t.w")
    def w(total: int) -> str:
        when(total > 100, lambda: kept.append(ask(total)), otherwise=None)
        return approve(kept[0])

    with pytest.raises(SymbolMisuse, match=r"step 'ask' escapes its lambda: .* if this branch"):
        w.program()


def test_a_tuple_returned_by_every_branch_can_be_unpacked() -> None:
    @workflow(name="t.w")
    def w(total: int) -> Any:
        number, text = when(total > 1, lambda: pair(total), otherwise=lambda: (0, approve(total)))
        return [number, text]

    result = StepRef(("when", "result"))
    first, second = (Index(result, Literal(place)) for place in (0, 1))
    assert yielded(block(w)) == ArrayLiteral((first, second))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x: when(x > 1), "when does not take these arguments"),
        (lambda x: when(), "when does not take these arguments"),
        (lambda x: when(x > 1, 2, 3), "when does not take these arguments"),
        (lambda x: when((x > 1, 2), x, otherwise=3), "neither a value of the run nor True or Fal"),
        (lambda x: when(5, 1, otherwise=2), "the condition 5 of when is neither"),
        (lambda x: when(x, lambda y: y, otherwise=2), "branch 1 of when takes no parameter.*'y'"),
        (lambda x: when(x, 1, otherwise=lambda y: y), "otherwise takes no parameter.*'y'"),
        (lambda x: when(x, 1, otherwise=2, name="a b"), "the step name 'a b'"),
    ],
)
def test_a_misuse_raises_with_its_line(use: Any, message: str) -> None:
    def body(x: int) -> Any:
        return use(x)

    with pytest.raises(AuthoringError, match=message) as raised:
        workflow(name="t.w")(body).program()
    assert str(raised.value).startswith(f"{__file__}:")


def test_a_step_called_outside_a_lambda_is_refused() -> None:
    def eager(total: int) -> str:
        return when(total > 100, ask(total), otherwise=lambda: approve(total))

    def eager_case(total: int) -> str:
        return when((total > 100, ask(total)), otherwise=approve(total))

    for body, found in ((eager, 1), (eager_case, 2)):
        with pytest.raises(UntraceableCode, match="would run whichever branch") as raised:
            workflow(name=f"t.{body.__name__}")(body).program()
        assert len(raised.value.findings) == found


def test_outside_a_workflow_it_is_plain_python() -> None:
    assert decide.fn(101) == "asked about 101"
    assert decide.fn(100) == "approved 100"
    assert when((False, 1), (True, lambda: 2), (True, 3), otherwise=4) == 2
    assert when((False, 1), otherwise=4) == 4
    done: list[int] = []
    when(False, lambda: done.append(1))
    when(True, lambda: done.append(2))
    assert done == [2]
