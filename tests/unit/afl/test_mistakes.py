"""A syntax error has a position and is described in words of the language."""

from __future__ import annotations

import pickle

import pytest

from flowengine.afl import compile_text, read_text
from flowengine.errors import InvalidProgram, InvalidText

BEFORE = "namespace n {\n  workflow W(x: Long) => (y: Long) andThen {\n"
AFTER = "\n  }\n}\n"


def mistake(text: str) -> InvalidText:
    with pytest.raises(InvalidText) as caught:
        read_text(text, "shop.afl")
    return caught.value


@pytest.mark.parametrize(
    ("line", "column", "says"),
    [
        ("yield (y = 1)", 7, "a yield names its target facet"),
        ("yield y = 1", 9, "a yield names its target facet"),
        ("yield W(y = $.x = 3)", 17, "to compare, write `==`"),
        ("s = E(x == 3)", 9, "to assign a value, write `=`"),
        ("s = E(3)", 7, "a name is required"),
        ("s = E(x: 3)", 8, "a name is required"),
        ("s = E(x = 3,)", 13, "remove the last comma"),
        ('s = E(x = "abc)', 11, "the string that begins here is not closed"),
        ("s = E(x = 'a')", 11, "double quotes"),
        ("/* s = E()", 1, "the comment that begins here is not closed"),
        ("a = E() event = E()", 9, "`event` is a keyword"),
        ("a = E() script = E()", 9, "`script` is a keyword"),
        ("true = E()", 1, "`true` is a keyword"),
        ("yield = E()", 7, "`yield` is a keyword"),
        ("s = E(x = {})", 11, "a map is written #{…}"),
        ("s = E(x = 1 < 2 < 3)", 17, "comparisons cannot be chained"),
        ("s = E(x = a.b and c.d)", 15, "write `&&` for `and`"),
        ("s = E(x = a.b | c.d)", 15, "write `||`"),
        ("s = E with M()", 7, "parentheses are required, even if empty: E()"),
        ("yield W() s = E()", 11, "write the steps of a block before its yields"),
        ("s = E() andthen { }", 17, "did you mean `andThen`?"),
        ("E()", 2, "a step needs a name: name = E(…)"),
        ("é = E()", 1, "names consist of the letters"),
        ("s = E(x = 9e9)", 11, "write numbers as"),
        ("s = E(x = 1.0e999)", 11, "too large"),
        ('s = E(x = "\\ud800")', 11, "is not a character"),
        ('s = E(x = #{"": 1})', 13, "at least one character"),
        (f"s = E(x = {'9' * 5000})", 11, "too many digits"),
        ("s = E(x = )", 11, "expected a value, found `)`"),
        ("s = E(x = 1) andThen when { case a { } }", 36, "expected an operator or `=>`"),
        ("workflow V()", 10, "is the `{` of line 2 closed?"),
    ],
)
def test_a_syntax_error_has_a_position_and_a_cure(line: str, column: int, says: str) -> None:
    found = mistake(BEFORE + line + AFTER)
    assert (found.file, found.line, found.column) == ("shop.afl", 3, column)
    assert says in str(found)


def test_the_caret_is_below_the_column_even_after_tabs() -> None:
    lines = str(mistake(BEFORE + "\t\ts = E(x = )" + AFTER)).splitlines()
    assert lines[0] == "shop.afl:3:13: expected a value, found `)`"
    assert lines[1:] == ["    \t\ts = E(x = )", "    \t\t          ^"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BEFORE, "the `{` of line 2, column 44 is not closed"),
        (BEFORE + "s = E(x = 1" + AFTER, "the `(` of line 3, column 6 is not closed"),
        ("facet F() }", "no bracket is open here"),
        ("facet F() script { x = '}'", "the script that begins here is not closed"),
        ("event facet S(a: Long) => b: Long", "write returns in parentheses"),
        ("namespace a { namespace b { } }", "namespaces cannot be nested"),
        ("use a.b", "`use` is allowed only in a namespace"),
        ("facet", "expected a name, found the end of the text\n    facet\n         ^"),
        ("fcaet F()", "did you mean `facet`?"),
        ("facet F() script ruby 'x'", "double quotes"),
        ('facet F() script ruby "x"', "must be python"),
        ('facet F() script ""', "the script is empty"),
        ('facet F() prompt { tone "x" }', "a prompt has system, template, model"),
        ('facet F(x: String = "a\nfacet G(x: String = "b")', "was it closed?"),
        ("facet F(\ufdd0)", "this character is not allowed in text"),
    ],
)
def test_a_mistake_is_reported_where_it_starts(text: str, says: str) -> None:
    assert says in str(mistake(text))


def test_invalid_utf_8_is_reported_with_its_position() -> None:
    with pytest.raises(InvalidText, match="the byte 0xff is not UTF-8") as caught:
        read_text(b"facet F()\nfacet \xff()")
    assert (caught.value.line, caught.value.column) == (2, 7)


def test_no_error_names_a_grammar_terminal() -> None:
    for text in ("facet", "facet F(", "facet F(x", BEFORE, BEFORE + "s", BEFORE + "s = E(x = 1"):
        what = mistake(text).what
        assert not [word for word in what.split() if word.strip("_,").isupper()], what


def test_the_error_can_be_pickled() -> None:
    found = mistake("facet")
    assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_a_problem_of_the_program_has_a_line_and_a_column() -> None:
    text = """namespace n {
  facet F(x: Long) => (y: Long)
  workflow W(x: Long) => (y: Long) andThen {
    a = F(x = ghost.y)
    b = F(x = 1) andThen foreach i in [1] {
      c = Nowhere(x = 1)
      sys.log(v = $.none)
    }
    yield Other(y = 1)
  } andThen {
    d = F(z = 1)
  }
}"""
    with pytest.raises(InvalidProgram) as caught:
        compile_text(text, "n.afl")
    places = {problem.where.split(", ")[0]: problem.what for problem in caught.value.problems}
    assert "ghost" in places["n.afl:4:5"]
    assert "Nowhere" in places["n.afl:6:7"]
    assert "$.none" in places["n.afl:7:7"]
    assert "Other" in places["n.afl:9:5"]
    assert "n.afl:11:5" in places


def test_without_a_file_the_error_names_line_and_column() -> None:
    with pytest.raises(InvalidProgram, match=r"line 1, column 27, W, step 'a': unknown facet"):
        compile_text("workflow W() andThen {    a = Nowhere() }")


def test_a_problem_in_a_case_has_the_position_of_that_case() -> None:
    text = """event facet E(x: Long) => (y: Long)
workflow W(x: Long) => (y: Long) andThen when {
  case $.x > 1 => { s = E(x = 1) yield W(y = s.y) }
  case $.x > 2 => { s = E(x = 1) yield W(y = ghost.y) }
  case _ => { s = E(x = ghost.y) }
}"""
    with pytest.raises(InvalidProgram) as caught:
        compile_text(text, "n.afl")
    assert [problem.where for problem in caught.value.problems] == [
        "n.afl:4:34, W, case-1, yield",
        "n.afl:5:15, W, default, step 's'",
    ]
