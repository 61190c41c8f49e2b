"""Any text is a program or raises an error with a position."""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowengine.afl import checked, compile_text, read_text
from flowengine.errors import InvalidProgram, InvalidText, Problem
from flowengine.program import parse_program, program_hash, write_program
from flowengine.testing import run_program
from tests.examples_drawn import AT_RANDOM
from tests.unit.afl.random_programs import RandomProgram
from tests.unit.afl.test_corpus import CORPUS

SOURCES = [case["source"] for name, case in CORPUS.items() if name != "chain_of_200_events"]
PIECES = [
    *("{", "}", "(", ")", "[", "]", "#{", "=", "==", "=>", "++", ",", ".", "$", "$.", "/*", "*/"),
    *("//", "/**", '"', "\\", "'", "-", "!", "_", ";", ":", "0", "1.5", "é", "\0", "\t", "\r\n"),
    *(" yield ", " case ", " when ", " catch ", " andThen ", " foreach ", " in ", " with ", " as "),
    *(" facet ", " script ", ") script {", " prompt ", " namespace ", " sys.log(", " not in "),
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(SOURCES))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 12)))
        piece = draw(st.sampled_from([*PIECES, "", text[begin:end] * 2]) | st.text(max_size=3))
        text = text[:begin] + piece + text[end:]
    return text


@settings(max_examples=400 if AT_RANDOM else 30)
@given(mutated() | st.text(max_size=30) | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_parses_or_raises_with_a_position(text: str) -> None:
    error = parse_error(text)
    if isinstance(error, InvalidText):
        lines = text.removeprefix("\ufeff").split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
        assert str(error).startswith(f"x.afl:{error.line}:{error.column}: ")
    elif error:
        assert all(problem.where.startswith("x.afl") for problem in error.problems)


def parse_error(text: str) -> InvalidText | InvalidProgram | None:
    try:
        compile_text(text, "x.afl")
    except (InvalidText, InvalidProgram) as error:
        return error
    return None


@pytest.mark.parametrize(
    "count", [40, pytest.param(2_000, marks=pytest.mark.chaos)], ids=["some", "many"]
)
def test_a_program_that_parses_is_linked_or_refused_with_all_its_problems(count: int) -> None:
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for seed in range(count):
        text = RandomProgram(seed).text()
        document = read_text(text, "x.afl")  # it parses, or the writer of these texts is wrong
        began = time.process_time()
        problems: list[Problem] = []
        try:
            program = checked(document, "x.afl")
            assert parse_program(write_program(program)) == program, f"seed {seed}"
        except InvalidProgram as error:
            problems = error.problems
        outcomes["refused" if problems else "linked"] += 1
        assert all(p.where.startswith("x.afl") and p.what for p in problems), f"seed {seed}"
        slowest = max(slowest, time.process_time() - began)
        assert slowest < 5, f"seed {seed} took {slowest:.1f} s"
    print(f"{count} programs that parse: {dict(outcomes)}, the slowest in {slowest:.3f} s")
    assert min(outcomes["linked"], outcomes["refused"]) > count / 20, outcomes


HEAD = "namespace n { facet G(x: Json) => (y: Json) workflow W(x: Long) => (y: Json) andThen {"
NESTED: dict[str, Callable[[int], str]] = {
    "sum": lambda n: HEAD + f"yield W(y = {'+'.join(['$.x'] * n)}) }} }}",
    "parentheses": lambda n: HEAD + f"yield W(y = {'(1 + ' * n}1{')' * n}) }} }}",
    "signs": lambda n: HEAD + f"yield W(y = {'-' * n}1) }} }}",
    "lists": lambda n: HEAD + f"yield W(y = {'[' * n}{']' * n}) }} }}",
    "maps": lambda n: HEAD + "yield W(y = " + "#{a: " * n + "1" + "}" * n + ") } }",
    "joins": lambda n: HEAD + "yield W(y = " + '("a" ++ ' * n + '"b"' + ")" * n + ") } }",
    "indexes": lambda n: HEAD + f"yield W(y = [1]{'[0]' * n}) }} }}",
    "types": lambda n: f"facet F(x: {'[' * n}Long{']' * n})",
    "blocks": lambda n: HEAD + "s = G(x = 1) andThen {" * n + "}" * n + "} }",
    "loops": lambda n: HEAD + "s = G(x = 1) andThen foreach i in [1] {" * n + "}" * n + "} }",
    "catches": lambda n: HEAD + "s = G(x = 1) catch {" * n + "}" * n + "} }",
    "cases": lambda n: HEAD + "s = G(x = 1) andThen when { case 1 == 1 => {" * n + "}}" * n + "} }",
    "foreach outside": lambda n: f"facet F() andThen foreach i in {'+'.join('1' * n)} {{ }}",
}


@pytest.mark.parametrize("shape", NESTED)
def test_too_deep_nesting_is_reported(shape: str) -> None:
    with pytest.raises(InvalidText, match="nested too deep"):
        read_text(NESTED[shape](5_000))


@pytest.mark.parametrize("shape", NESTED)
def test_the_deepest_accepted_nesting_can_be_processed(shape: str) -> None:
    # The first that is refused: each depth below it is accepted.
    deepest = bisect_left(range(1, 160), True, key=lambda n: not _is_read(NESTED[shape](n)))
    assert deepest >= 20
    program = parse_program(read_text(NESTED[shape](deepest)))
    assert parse_program(write_program(program)) == program
    assert program_hash(program)
    if shape in ("sum", "parentheses", "lists", "maps", "blocks", "loops"):
        document = read_text(NESTED[shape](deepest))
        assert run_program(document, "n.W", {"x": 1}, {}).status == "COMPLETED"


def _is_read(text: str) -> bool:
    try:
        read_text(text)
    except InvalidText:
        return False
    return True


def statements(count: int) -> str:
    steps = "\n".join(f"s{i} = G(x = [$.x + {i}, #{{a: -{i}}}])" for i in range(count))
    return f"{HEAD}\n{steps}\nyield W(y = 1) }} }}"


def calls(act: Callable[[], Any]) -> int:
    """Count the function calls of an action: deterministic, unlike seconds."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def test_parsing_takes_linear_time() -> None:
    read_text("")  # builds the grammar
    short, long = (calls(lambda n=n: read_text(statements(n))) for n in (100, 400))
    assert long < 4.2 * short


def test_finding_an_error_at_the_end_takes_linear_time() -> None:
    broken = statements(300).rstrip("} ")
    assert calls(lambda: _is_read(broken)) < 3 * calls(lambda: read_text(statements(300)))


@pytest.mark.parametrize(
    "piece",
    [
        "/*",
        ")/*",
        '\\"',
        '"\\',
        "'\\",
        ") script {",
        ") script {'''",
        "andThen as ",
        "9",
        "((",
        "a.",
    ],
)
def test_no_text_causes_catastrophic_backtracking(piece: str) -> None:
    for text in (piece * 20_000, f"facet F() script {{ {piece * 20_000}"):
        assert not _is_read(text)


@pytest.mark.chaos
def test_ten_thousand_statements_are_parsed() -> None:
    document = read_text(statements(10_000))
    assert len(document["declarations"][0]["declarations"][1]["body"]["steps"]) == 10_000
