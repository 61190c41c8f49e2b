"""attempt: body, handlers, and `always`."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.authoring import CaughtError, attempt, concat, event_facet, workflow
from flowengine.errors import AuthoringError, SymbolMisuse
from flowengine.program.nodes import (
    Binary,
    Block,
    Call,
    Concat,
    Field,
    InputRef,
    Literal,
    MapLiteral,
    StepRef,
    StepStatement,
    WhenCase,
)
from tests.unit.authoring.compiled import block, declarations, steps, yielded


class CardRefused(Exception):
    pass


class BankError(Exception):
    pass


class BankClosed(BankError):
    pass


@event_facet
def charge(card: str) -> str:
    if card == "empty":
        raise CardRefused("no money")
    if card == "lost":
        raise ConnectionResetError
    return f"paid by {card}"


@event_facet
def tell(what: Any) -> str:
    return f"told {what}"


@event_facet
def release(card: str) -> None: ...


@workflow
def pay(card: str) -> str:
    return attempt(
        lambda: charge(card),
        catch=lambda error: tell(error.message),
        always=lambda: release(card),
    )


def names(statements: Any) -> list[str]:
    return [s.name for s in statements if isinstance(s, StepStatement)]


def test_an_attempt_is_a_step_with_a_body_a_catch_and_an_always() -> None:
    (step,) = steps(block(pay))
    assert step.name == "attempt"
    assert step.call == Call("flowengine.attempt")
    (body,) = step.body
    assert names(body.statements) == ["charge"]
    assert yielded(body) == StepRef(("charge", "result"))
    assert step.catch is not None
    assert names(step.catch.statements) == ["tell"]
    (statement,) = step.catch.statements
    assert isinstance(statement, StepStatement)
    assert statement.call.arguments[0].value == StepRef(("attempt", "error"))
    assert step.catch.yields[0].call.target == "flowengine.attempt"
    assert yielded(Block(yields=step.catch.yields)) == StepRef(("tell", "result"))
    (always,) = step.always
    assert names(always.statements) == ["release"]
    assert always.yields == ()
    assert yielded(block(pay)) == StepRef(("attempt", "result"))


def test_the_attempt_facet_is_declared_by_programs_that_use_it() -> None:
    declared = declarations(pay)["flowengine.attempt"]
    assert (declared.params, declared.returns) == ((), (Field("result"),))


def test_the_handler_reads_the_error_from_the_step() -> None:
    @workflow(name="t.w")
    def w(card: str) -> str:
        return attempt(
            lambda: charge(card),
            catch=lambda e: tell([concat(e.type, " at ", e.path), e]),
            name="paying",
        )

    (step,) = steps(block(w))
    assert step.catch is not None
    (statement,) = step.catch.statements
    assert isinstance(statement, StepStatement)
    message, kind, path = (StepRef(("paying", a)) for a in ("error", "error_type", "error_path"))
    text, whole = statement.call.arguments[0].value.elements  # type: ignore[union-attr]
    assert text == Concat((kind, Literal(" at "), path))
    assert whole == MapLiteral((("message", message), ("type", kind), ("path", path)))


def test_a_report_is_an_always_block_that_runs_after_a_failure_and_cannot_fail() -> None:
    @workflow(name="t.w")
    def w(card: str) -> str:
        return attempt(lambda: charge(card), failed=lambda error: tell(error.type), reraise=True)

    (step,) = steps(block(w))
    assert step.catch is None
    (always,) = step.always
    has_failed, otherwise = always.cases
    assert always.first_match
    assert otherwise == WhenCase(None)
    (guard,) = has_failed.statements
    assert isinstance(guard, StepStatement)
    assert guard.call == Call("flowengine.attempt")
    assert guard.catch is not None
    assert guard.catch.cases == (WhenCase(None),)
    (body,) = guard.body
    (told,) = body.statements
    assert isinstance(told, StepStatement)
    assert told.call.arguments[0].value == StepRef(("attempt", "error_type"))


def test_an_attempt_that_reports_and_catches_is_refused() -> None:
    with pytest.raises(AuthoringError, match=r"both `catch` and `failed`.*one attempt into the"):
        attempt(  # type: ignore[call-overload]
            lambda: 1, catch=lambda error: 2, failed=lambda error: 3
        )
    with pytest.raises(AuthoringError, match="`failed` with reraise=False"):
        attempt(lambda: 1, failed=lambda error: 3, reraise=False)  # type: ignore[call-overload]


def test_handlers_by_class_become_cases_on_the_error_type() -> None:
    @workflow(name="t.w")
    def w(card: str) -> str:
        return attempt(
            lambda: charge(card),
            catch={
                CardRefused: lambda error: "no money",
                "WorkerLost": lambda error: "lost",
                (ConnectionError, TimeoutError): lambda error: tell(error.message),
            },
        )

    (step,) = steps(block(w))
    assert step.catch is not None
    assert step.catch.statements == ()
    assert step.catch.first_match
    kinds = StepRef(("attempt", "error_types"))
    refused, lost, cut_off = step.catch.cases
    assert refused.condition == Binary("contains", kinds, Literal("CardRefused"))
    assert lost.condition == Binary("contains", kinds, Literal("WorkerLost"))
    assert cut_off.condition == Binary(
        "||",
        Binary("contains", kinds, Literal("ConnectionError")),
        Binary("contains", kinds, Literal("TimeoutError")),
    )
    assert names(cut_off.statements) == ["tell"]


def test_a_handler_of_a_class_catches_subclasses_of_any_module_in_plain_python() -> None:
    elsewhere = type("BankElsewhere", (BankError,), {"__module__": "elsewhere"})

    def fail() -> str:
        raise elsewhere("closed")

    assert attempt(fail, catch={BankError: lambda error: error.type}) == "BankElsewhere"


def test_exception_matches_every_error_and_must_come_last() -> None:
    @workflow(name="t.w")
    def w(card: str) -> str:
        return attempt(
            lambda: charge(card), catch={KeyError: lambda e: "key", Exception: lambda e: "other"}
        )

    catch = steps(block(w))[0].catch
    assert catch is not None
    assert [case.condition is None for case in catch.cases] == [False, True]

    def unreachable(card: str) -> str:
        return attempt(
            lambda: charge(card), catch={Exception: lambda e: "", KeyError: lambda e: ""}
        )

    with pytest.raises(AuthoringError, match=r"KeyError.* is unreachable"):
        workflow(name="t.u")(unreachable).program()


def test_always_without_catch_keeps_the_error() -> None:
    @workflow(name="t.w")
    def w(card: str) -> str:
        return attempt(lambda: charge(card), always=lambda: release(card))

    (step,) = steps(block(w))
    assert step.catch is None
    assert len(step.always) == 1


def test_symbols_of_the_body_are_refused_in_the_catch() -> None:
    kept: list[Any] = []

    def body(card: str) -> str:
        return attempt(lambda: kept.append(charge(card)), catch=lambda error: tell(kept[0]))  # type: ignore[return-value]

    with pytest.raises(SymbolMisuse, match=r"step 'charge' escapes its lambda: .* if attempt step"):
        workflow(name="t.w")(body).program()


def test_the_error_is_refused_outside_the_catch() -> None:
    kept: list[CaughtError] = []

    def body(card: str) -> str:
        attempt(lambda: charge(card), catch=lambda error: kept.append(error))
        return tell(kept[0].message)

    with pytest.raises(SymbolMisuse, match="message of the error of step 'attempt' escapes"):
        workflow(name="t.w")(body).program()


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda x: attempt(lambda: x), "neither catches an error nor has an `always`"),
        (lambda x: attempt(lambda: x, catch={}), "neither catches an error nor has an `always`"),
        (lambda x: attempt(charge(x), catch=tell), "must be callable, this is the result of a st"),
        (lambda x: attempt(lambda y: y, catch=tell), "the body of attempt takes no parameter.*'y'"),
        (lambda x: attempt(lambda: x, catch=lambda: 1), "error handler takes one parameter"),
        (lambda x: attempt(lambda: x, catch=5), "error handler must be callable"),
        (lambda x: attempt(lambda: x, always=lambda e: e), "always takes no parameter.*'e'"),
        (lambda x: attempt(lambda: x, catch={int: tell}), "cannot catch <class 'int'>"),
        (lambda x: attempt(lambda: x, catch={(): tell}), r"cannot catch \(\)"),
    ],
)
def test_a_misuse_raises_with_its_line(use: Any, message: str) -> None:
    def body(x: str) -> Any:
        return use(x)

    with pytest.raises(AuthoringError, match=message) as raised:
        workflow(name="t.w")(body).program()
    assert str(raised.value).startswith(f"{__file__}:")


def test_outside_a_workflow_it_is_plain_python() -> None:
    assert pay.fn("visa") == "paid by visa"
    assert pay.fn("empty") == "told no money"
    done: list[str] = []
    with pytest.raises(CardRefused):
        attempt(lambda: charge("empty"), always=lambda: done.append("always"))
    assert done == ["always"]


def test_outside_a_workflow_errors_match_by_class_as_in_a_run() -> None:
    def tried(card: str) -> str:
        return attempt(
            lambda: charge(card),
            catch={CardRefused: lambda e: e.type, OSError: lambda e: e.message},
        )

    assert tried("empty") == "CardRefused"
    assert tried("lost") == "ConnectionResetError"
    with pytest.raises(CardRefused):
        attempt(lambda: charge("empty"), catch={KeyError: lambda e: ""})


def test_parameters_are_visible_in_every_part() -> None:
    (step,) = steps(block(pay))
    (released,) = step.always[0].statements
    assert isinstance(released, StepStatement)
    assert released.call.arguments[0].value == InputRef(("card",))
