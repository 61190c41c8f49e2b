"""Expressions have the value that JSON and arithmetic give them, or a reason why none."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.program.expressions import Constants, EvaluationError, evaluate, references
from flowengine.program.nodes import (
    BINARY_OPERATORS,
    ArrayLiteral,
    Binary,
    Concat,
    Expression,
    Index,
    InputRef,
    Literal,
    MapLiteral,
    StepRef,
    Unary,
)
from flowengine.settings import Settings


class Names:
    """A scope with ``$.n`` and one step ``s``."""

    limits = Settings()

    given: dict[str, Any] = {"n": {"a": {"b": 7}, "none": None}}  # noqa: RUF012
    step: dict[str, Any] = {"y": [10, 20, 30]}  # noqa: RUF012

    def spend(self, parts: int) -> None:
        self.parts = getattr(self, "parts", 0) + parts

    def input(self, name: str) -> Any:
        return self.given[name]

    def step_attribute(self, name: str, attribute: str) -> Any:
        return self.step[attribute]

    def whole_step(self, name: str) -> Any:
        return dict(self.step)


def node(value: Any) -> Expression:
    return value if isinstance(value, Expression) else Literal(value)


def calculated(left: Any, symbol: str, right: Any) -> Any:
    return evaluate(Binary(symbol, node(left), node(right)), Names())


def why_not(expression: Expression) -> str:
    with pytest.raises(EvaluationError) as caught:
        evaluate(expression, Names())
    return str(caught.value)


#: Evaluating it fails: proof that nobody did.
POISON = Binary("/", Literal(1), Literal(0))


# --- arithmetic ---


@pytest.mark.parametrize(
    ("left", "symbol", "right", "expected"),
    [
        (2, "+", 3, 5),
        (2, "-", 3, -1),
        (2, "*", 3, 6),
        (7, "/", 2, 3.5),
        (6, "/", 3, 2.0),
        (7, "%", 3, 1),
        (-7, "%", 3, 2),
        (0.5, "+", 1, 1.5),
        ("ab", "+", "cd", "abcd"),
        ([1], "+", [2, 3], [1, 2, 3]),
    ],
)
def test_arithmetic_gives(left: Any, symbol: str, right: Any, expected: Any) -> None:
    assert calculated(left, symbol, right) == expected


def test_division_is_true_division() -> None:
    assert calculated(1, "/", 2) == 0.5
    assert isinstance(calculated(4, "/", 2), float)


@pytest.mark.parametrize("symbol", ["/", "%"])
@pytest.mark.parametrize("zero", [0, 0.0])
def test_division_by_zero_has_no_value(symbol: str, zero: float) -> None:
    found = why_not(Binary(symbol, Literal(1), Literal(zero)))
    assert found == f"division by zero: 1 {symbol} {zero}"


@pytest.mark.parametrize(
    ("left", "symbol", "right"),
    [
        (1e308, "*", 10),
        (1e308, "+", 1e308),
        (-1e308, "*", 10),
        (10**400, "/", 3),
        (10**200, "*", 10**200),
        (10**400, "*", 1.0),
    ],
)
def test_a_number_that_json_cannot_hold_has_no_value(left: Any, symbol: str, right: Any) -> None:
    found = why_not(Binary(symbol, Literal(left), Literal(right)))
    assert found == f"the result of {symbol!r} is too large"


@pytest.mark.parametrize("symbol", ["-", "*", "/", "%"])
@pytest.mark.parametrize("other", [None, "1", True, [1], {}])
def test_only_numbers_can_be_calculated_with(symbol: str, other: Any) -> None:
    assert why_not(Binary(symbol, Literal(1), Literal(other))).endswith(
        f"cannot be used with {symbol!r}"
    )


@pytest.mark.parametrize(("left", "right"), [(1, "1"), ("a", 1), ([1], 1), (True, True), (None, 1)])
def test_plus_adds_numbers_or_joins_two_texts_or_two_lists(left: Any, right: Any) -> None:
    assert "cannot be used with '+'" in why_not(Binary("+", Literal(left), Literal(right)))


def test_minus_turns_a_number_round_and_nothing_else() -> None:
    assert evaluate(Unary("-", Literal(3)), Names()) == -3
    assert why_not(Unary("-", Literal(True))) == "a truth value cannot be used with '-'"
    assert why_not(Unary("-", Literal(None))) == "null cannot be used with '-'"


# --- comparing ---


@pytest.mark.parametrize(
    ("left", "symbol", "right", "expected"),
    [
        (1, "<", 2, True),
        (2, "<=", 2, True),
        (1, ">", 2, False),
        (2.5, ">=", 2, True),
        ("a", "<", "b", True),
        (1, "==", 1.0, True),
        (1, "!=", 2, True),
        ("1", "==", 1, False),
        ([1, [2]], "==", [1, [2]], True),
        ({"a": 1}, "==", {"a": 1}, True),
        ({"a": 1}, "==", {"b": 1}, False),
        ([1], "==", [1, 2], False),
        ({"a": 1, "b": True}, "==", {"b": True, "a": 1}, True),
        ({"a": 1, "b": True}, "==", {"b": 1, "a": True}, False),
        ([True, [1]], "==", [True, [1.0]], True),
    ],
)
def test_comparing_gives(left: Any, symbol: str, right: Any, expected: bool) -> None:
    assert calculated(left, symbol, right) is expected


@pytest.mark.parametrize(
    ("truth", "number"),
    [
        (True, 1),
        (False, 0),
        (True, 1.0),
        ([True], [1]),
        ({"a": False}, {"a": 0}),
        ([{"a": [True]}], [{"a": [1]}]),
    ],
)
def test_a_truth_value_is_not_a_number_at_any_depth(truth: Any, number: Any) -> None:
    assert calculated(truth, "==", number) is False
    assert calculated(number, "!=", truth) is True
    assert calculated(truth, "==", truth) is True
    assert calculated(truth, "in", [number]) is False


@pytest.mark.parametrize(("left", "right"), [(1, "1"), (None, 1), (True, 2), ([1], [2])])
def test_only_two_numbers_or_two_texts_have_an_order(left: Any, right: Any) -> None:
    assert "cannot be used with '<'" in why_not(Binary("<", Literal(left), Literal(right)))


def test_null_equals_null_and_nothing_else() -> None:
    assert calculated(None, "==", None) is True
    others: list[Any] = [0, False, "", [], {}]
    assert [calculated(None, "==", other) for other in others] == [False] * 5


# --- containing ---


@pytest.mark.parametrize(
    ("left", "symbol", "right", "expected"),
    [
        (2, "in", [1, 2], True),
        (3, "in", [1, 2], False),
        (None, "in", [None], True),
        ("b", "in", "abc", True),
        ("a", "in", {"a": 1}, True),
        (1, "not in", [2], True),
        ([1, 2], "contains", 2, True),
        ("abc", "contains", "bc", True),
        ({"a": 1}, "contains", "b", False),
        ("abc", "startsWith", "ab", True),
        ("abc", "endsWith", "ab", False),
    ],
)
def test_containing_gives(left: Any, symbol: str, right: Any, expected: bool) -> None:
    assert calculated(left, symbol, right) is expected


@pytest.mark.parametrize(
    ("left", "symbol", "right", "reason"),
    [
        (1, "in", 5, "the number 5 cannot hold the number 1 (in)"),
        (1, "in", "123", "the text '123' cannot hold the number 1 (in)"),
        (None, "contains", 1, "null cannot hold the number 1 (contains)"),
        ("a", "startsWith", 1, "startsWith wants text, found the text 'a', the number 1"),
        (None, "endsWith", "a", "endsWith wants text, found null, the text 'a'"),
    ],
)
def test_membership_in_a_value_that_is_no_container_is_an_error(
    left: Any, symbol: str, right: Any, reason: str
) -> None:
    assert why_not(Binary(symbol, Literal(left), Literal(right))) == reason


# --- truth ---


def test_and_does_not_look_right_when_the_left_decides() -> None:
    assert calculated(False, "&&", POISON) is False
    assert calculated(0, "&&", POISON) is False
    assert "division by zero" in why_not(Binary("&&", Literal(True), POISON))


def test_or_does_not_look_right_when_the_left_decides() -> None:
    assert calculated(True, "||", POISON) is True
    assert calculated("text", "||", POISON) is True
    assert "division by zero" in why_not(Binary("||", Literal(False), POISON))


@pytest.mark.parametrize("value", [None, 0, "", [], {}, False])
def test_empty_values_are_false(value: Any) -> None:
    assert evaluate(Unary("!", Literal(value)), Names()) is True
    assert calculated(value, "||", value) is False


def test_and_and_or_answer_with_a_truth_value() -> None:
    assert calculated("a", "&&", "b") is True
    assert calculated(0, "||", "b") is True


# --- joining ---


def joined(*operands: Any) -> Any:
    return evaluate(Concat(tuple(Literal(operand) for operand in operands)), Names())


def test_joining_writes_numbers_and_truth_values_as_json_and_null_as_nothing() -> None:
    assert joined("n=", 1, " ", 2.5, " ", True, " ", None, "!") == "n=1 2.5 true !"


def test_joining_nothing_is_an_empty_text() -> None:
    assert joined(None) == ""


@pytest.mark.parametrize(
    ("value", "named"), [([1, 2], "a list of 2"), ({"a": 1}, "a map with the keys ['a']")]
)
def test_a_list_or_map_cannot_be_joined(value: Any, named: str) -> None:
    expression = Concat((Literal("x"), Literal(value)))
    assert why_not(expression) == f"{named} cannot be joined to text"


# --- paths and indexes ---


def test_a_path_walks_into_maps() -> None:
    assert evaluate(InputRef(("n", "a", "b")), Names()) == 7
    assert evaluate(InputRef(("n", "none")), Names()) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (("n", "x"), "input n has no 'x'"),
        (("n", "a", "x"), "input n.a has no 'x'"),
        (("n", "a", "b", "x"), "input n.a.b is the number 7 and has no 'x'"),
        (("n", "none", "x"), "input n.none is null and has no 'x'"),
    ],
)
def test_an_absent_attribute_is_an_error_and_null_has_no_fields(
    path: tuple[str, ...], reason: str
) -> None:
    assert why_not(InputRef(path)) == reason


def test_a_step_reference_reads_an_attribute_or_the_whole_step() -> None:
    assert evaluate(StepRef(("s", "y")), Names()) == [10, 20, 30]
    assert evaluate(StepRef(("s",)), Names()) == {"y": [10, 20, 30]}


@pytest.mark.parametrize(
    ("target", "index", "expected"),
    [
        ([1, 2, 3], 0, 1),
        ([1, 2, 3], -1, 3),
        ([1, 2, 3], -3, 1),
        ("abc", -1, "c"),
        ({"a": 1}, "a", 1),
        ({"a": None}, "a", None),
    ],
)
def test_an_index_reads_and_a_negative_one_counts_from_the_end(
    target: Any, index: Any, expected: Any
) -> None:
    assert evaluate(Index(Literal(target), Literal(index)), Names()) == expected


@pytest.mark.parametrize(
    ("target", "index", "reason"),
    [
        ([1, 2], 2, "index 2 is outside a list of 2"),
        ([1, 2], -3, "index -3 is outside a list of 2"),
        ([], 0, "index 0 is outside a list of 0"),
        ("ab", 5, "index 5 is outside the text 'ab'"),
        ({"a": 1}, "b", "the map has no key 'b'"),
        ([1, 2], True, "a list of 2 has no item True"),
        ([1, 2], "0", "a list of 2 has no item '0'"),
        ([1, 2], 0.0, "a list of 2 has no item 0.0"),
        ({"0": 1}, 0, "a map with the keys ['0'] has no item 0"),
        (None, 0, "null has no item 0"),
    ],
)
def test_an_index_outside_has_no_value(target: Any, index: Any, reason: str) -> None:
    assert why_not(Index(Literal(target), Literal(index))) == reason


# --- literals and references ---


def test_literals_of_lists_and_maps_hold_expressions() -> None:
    inner = Binary("+", Literal(1), Literal(2))
    assert evaluate(ArrayLiteral((inner, Literal(None))), Names()) == [3, None]
    assert evaluate(MapLiteral((("a", inner),)), Names()) == {"a": 3}


def test_references_are_found_in_every_kind_of_expression_in_text_order() -> None:
    refs = [InputRef((name,)) for name in "abcdefgh"]
    expression = ArrayLiteral(
        (
            Concat((refs[0], Literal("x"))),
            Binary("+", refs[1], Unary("-", refs[2])),
            MapLiteral((("k", refs[3]), ("l", StepRef(("s", "y"))))),
            Index(refs[4], refs[5]),
            Binary("&&", refs[6], refs[7]),
        )
    )
    names = [reference.path[0] for reference in references(expression)]
    assert names == ["a", "b", "c", "d", "s", "e", "f", "g", "h"]


def test_a_constant_refers_to_nothing() -> None:
    for reference in (InputRef(("n",)), StepRef(("s",)), StepRef(("s", "y"))):
        with pytest.raises(EvaluationError, match="a constant cannot refer to"):
            evaluate(reference, Constants())


def test_every_operator_that_can_be_parsed_can_be_evaluated() -> None:
    for symbol in BINARY_OPERATORS:
        try:
            calculated("a", symbol, "a")
        except EvaluationError:
            continue  # a reason is an answer; a crash is not
