"""Recognise common mistakes and suggest the correction."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lark import Token

_DECLARATIONS = frozenset(["namespace", "facet", "event", "workflow", "schema", "implicit", "use"])
_WORD_OPERATORS = {"and": "&&", "or": "||", "not": "!"}
_RESERVED = frozenset(["YIELD", "TRUE", "FALSE", "NULL", "ANDTHEN", "CATCH"])
#: May name a step, except after a call, where they could continue the statement.
_HALF_RESERVED = frozenset(
    ["NAMESPACE", "USE", "FACET", "EVENT", "WORKFLOW", "SCHEMA", "IMPLICIT", "_SCRIPT", "_PROMPT"]
)
_CAMEL_CASE = ("andThen", "startsWith", "endsWith")
_LOWER_CASE = ("foreach", "when", "case", "catch", "yield", "script", "prompt", "with", "contains")
_KEYWORDS = {word.lower(): word for word in (*_DECLARATIONS, *_CAMEL_CASE, *_LOWER_CASE)}
_ASSIGNED = re.compile(r"\s*=[^=>]")
_PAIRS = {"LPAR": "(", "LSQB": "[", "LBRACE": "{"}
_CLOSES = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}


@dataclass(frozen=True, slots=True)
class _Error:
    """The position and the tokens around a syntax error."""

    text: str
    at: int
    unexpected: Token | None  #: None: the lexer recognises no token
    before: Sequence[Token]  #: latest last
    opened: Sequence[Token]  #: unclosed brackets, innermost last
    accepted: Collection[str]  #: the expected terminals

    @property
    def kind(self) -> str:
        return self.unexpected.type if self.unexpected else ""

    @property
    def word(self) -> str:
        return str(self.unexpected) if self.unexpected else self.text[self.at : self.at + 1]

    @property
    def last(self) -> str:
        return self.before[-1].type if self.before else ""

    @property
    def is_after_value(self) -> bool:
        return "_OR" in self.accepted

    @property
    def is_in_parentheses(self) -> bool:
        return bool(self.opened) and self.opened[-1].type == "LPAR"


def hint(
    text: str,
    at: int,
    unexpected: Token | None,
    before: Sequence[Token],
    opened: Sequence[Token],
    accepted: Collection[str],
) -> str:
    """Return the correction of the probable mistake, or an empty text."""
    error = _Error(text, at, unexpected, before, opened, accepted)
    for recognise in _MISTAKES:
        if cure := recognise(error):
            return cure
    return ""


def _unclosed_string(error: _Error) -> str:
    if not error.unexpected and error.word == '"':
        return "the string that begins here is not closed"
    for token in reversed(error.before):
        if token.type == "STRING" and "\n" in token:
            return f"a string spans line {token.line} to line {token.end_line}: was it closed?"
    return ""


def _unclosed_comment(error: _Error) -> str:
    if error.text.startswith("/*", error.at):
        return "the comment that begins here is not closed"
    return ""


def _single_quotes(error: _Error) -> str:
    return 'write strings in double quotes: "…"' if error.word == "'" else ""


def _yield_without_target(error: _Error) -> str:
    if error.last == "YIELD" and error.kind != "_EQUAL":
        return "a yield names its target facet: yield Name(attribute = value)"
    if [token.type for token in error.before[-2:]] == ["YIELD", "NAME"] and error.kind == "_EQUAL":
        return "a yield names its target facet: yield Name(attribute = value)"
    return ""


def _word_as_name(error: _Error) -> str:
    if error.kind in ("_EQUAL", "COLON") and error.last in _RESERVED:
        word = str(error.before[-1])
    elif (error.kind in _RESERVED and "NAME" in error.accepted) or (
        error.kind in _HALF_RESERVED and _ASSIGNED.match(error.text, error.at + len(error.word))
    ):
        word = error.word
    else:
        return ""
    return f"`{word}` is a keyword and cannot be a name here"


def _declaration_in_a_block(error: _Error) -> str:
    words = {error.word, str(error.before[-1])} if error.before else {error.word}
    braces = [token for token in error.opened if token.type == "LBRACE"]
    if not words & _DECLARATIONS or not braces:
        return ""
    if "namespace" in words:
        return "namespaces cannot be nested: close the one before, or write its full name, a.b"
    return f"is the `{{` of line {braces[-1].line} closed? A block cannot contain a declaration"


def _not_closed(error: _Error) -> str:
    if not error.opened:
        return ""
    token = error.opened[-1]
    is_closed_by_another = error.kind in _CLOSES and _CLOSES[error.kind] != token.type
    if error.text[error.at :].strip() and not is_closed_by_another:
        return ""
    return f"the `{_PAIRS[token.type]}` of line {token.line}, column {token.column} is not closed"


def _too_many_closed(error: _Error) -> str:
    return "no bracket is open here" if error.kind in _CLOSES and not error.opened else ""


def _assignment_for_comparison(error: _Error) -> str:
    if error.kind == "_EQUAL" and error.is_after_value:
        return "to compare, write `==`"
    return ""


def _comparison_for_assignment(error: _Error) -> str:
    if error.word == "==" and "_EQUAL" in error.accepted:
        return "to assign a value, write `=`"
    return ""


def _word_operator(error: _Error) -> str:
    if error.word in _WORD_OPERATORS:
        return f"write `{_WORD_OPERATORS[error.word]}` for `{error.word}`"
    return f"write `{error.word * 2}`" if error.word in ("&", "|") else ""


def _chained_comparison(error: _Error) -> str:
    if error.kind == "COMPARE" and error.is_after_value:
        return "comparisons cannot be chained: write a < b && b < c"
    return ""


def _stray_brace(error: _Error) -> str:
    if error.kind != "LBRACE":
        return ""
    if "BRACED_SCRIPT" in error.accepted:
        return "the script that begins here is not closed"
    return "a map is written #{…}" if "_MAP" in error.accepted else ""


def _argument_without_name(error: _Error) -> str:
    if not error.is_in_parentheses:
        return ""
    if error.last == "COMMA" and error.kind == "RPAR":
        return "remove the last comma"
    is_a_name_missing = "NAME" in error.accepted and "_OR" not in error.accepted
    if "_EQUAL" in error.accepted or (is_a_name_missing and "STRING" not in error.accepted):
        return "a name is required: `name = value` in a call, `name: Type` in a declaration"
    return ""


def _step_after_yield(error: _Error) -> str:
    if "YIELD" in error.accepted and "NAME" not in error.accepted and error.kind == "NAME":
        return "write the steps of a block before its yields"
    return ""


def _bare_returns(error: _Error) -> str:
    if error.last == "_ARROW" and set(error.accepted) == {"LPAR"}:
        return "write returns in parentheses: => (name: Type)"
    return ""


def _call_without_parentheses(error: _Error) -> str:
    if error.last == "NAME" and "LPAR" in error.accepted and not error.is_after_value:
        return f"parentheses are required, even if empty: {error.before[-1]!s}()"
    return ""


def _step_without_name(error: _Error) -> str:
    if error.kind == "LPAR" and error.last == "NAME" and "_EQUAL" in error.accepted:
        return f"a step needs a name: name = {error.before[-1]!s}(…)"
    return ""


def _misspelt(error: _Error) -> str:
    if error.last == "NAME" and "_EQUAL" in error.accepted:
        word = str(error.before[-1])  # parsed as the name of a step
    else:
        word = error.word
    near = difflib.get_close_matches(word.lower(), _KEYWORDS, n=1, cutoff=0.8)
    meant = _KEYWORDS[near[0]] if near else word
    return f"did you mean `{meant}`?" if meant != word else ""


def _number(error: _Error) -> str:
    if not error.unexpected and error.word.isdigit():
        return "write numbers as 12, 1.5 or 2.0e3"
    return ""


def _use_outside(error: _Error) -> str:
    return (
        "`use` is allowed only in a namespace" if error.kind == "USE" and not error.opened else ""
    )


def _foreign_letter(error: _Error) -> str:
    if error.unexpected is None and re.match(r"[^\W\d_]", error.word) and not error.word.isascii():
        return "names consist of the letters A-Z and a-z, digits and _"
    return ""


_Recognise: TypeAlias = Callable[[_Error], str]
#: The first match wins: specific mistakes come before general ones.
_MISTAKES: tuple[_Recognise, ...] = (
    _unclosed_string,
    _unclosed_comment,
    _single_quotes,
    _yield_without_target,
    _word_as_name,
    _declaration_in_a_block,
    _not_closed,
    _too_many_closed,
    _assignment_for_comparison,
    _comparison_for_assignment,
    _word_operator,
    _chained_comparison,
    _stray_brace,
    _argument_without_name,
    _step_after_yield,
    _bare_returns,
    _call_without_parentheses,
    _step_without_name,
    _use_outside,
    _misspelt,
    _number,
    _foreign_letter,
)
