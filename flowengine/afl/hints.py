"""Recognise common mistakes and suggest the correction."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lark import Token

_DECLARATION_WORDS = frozenset(
    ["namespace", "facet", "event", "workflow", "schema", "implicit", "use"]
)
_WORD_OPERATORS = {"and": "&&", "or": "||", "not": "!"}
_RESERVED = frozenset(["YIELD", "TRUE", "FALSE", "NULL", "ANDTHEN", "CATCH"])
#: May name a step, except after a call, where they could continue the statement.
_HALF_RESERVED = frozenset(
    ["NAMESPACE", "USE", "FACET", "EVENT", "WORKFLOW", "SCHEMA", "IMPLICIT", "_SCRIPT", "_PROMPT"]
)
_CAMEL_CASE = ("andThen", "startsWith", "endsWith")
_LOWER_CASE = ("foreach", "when", "case", "catch", "yield", "script", "prompt", "with", "contains")
_KEYWORDS = {word.lower(): word for word in (*_DECLARATION_WORDS, *_CAMEL_CASE, *_LOWER_CASE)}
_ASSIGNED = re.compile(r"\s*=[^=>]")
_PAIRS = {"LPAR": "(", "LSQB": "[", "LBRACE": "{"}
_CLOSES = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}


@dataclass(frozen=True, slots=True)
class _ErrorContext:
    """The position and the tokens around a syntax error."""

    text: str
    at: int
    found: Token | None  #: None: the lexer recognises no token
    before: Sequence[Token]  #: latest last
    opened: Sequence[Token]  #: unclosed brackets, innermost last
    accepted: Collection[str]  #: the expected terminals

    @property
    def kind(self) -> str:
        return self.found.type if self.found else ""

    @property
    def word(self) -> str:
        return str(self.found) if self.found else self.text[self.at : self.at + 1]

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
    found: Token | None,
    before: Sequence[Token],
    opened: Sequence[Token],
    accepted: Collection[str],
) -> str:
    """Return the correction of the probable mistake, or an empty text."""
    context = _ErrorContext(text, at, found, before, opened, accepted)
    for recognise in _MISTAKES:
        if cure := recognise(context):
            return cure
    return ""


def _unclosed_string(context: _ErrorContext) -> str:
    if not context.found and context.word == '"':
        return "the string that begins here is not closed"
    for token in reversed(context.before):
        if token.type == "STRING" and "\n" in token:
            return f"a string spans line {token.line} to line {token.end_line}: was it closed?"
    return ""


def _unclosed_comment(context: _ErrorContext) -> str:
    if context.text.startswith("/*", context.at):
        return "the comment that begins here is not closed"
    return ""


def _single_quotes(context: _ErrorContext) -> str:
    return 'write strings in double quotes: "…"' if context.word == "'" else ""


def _yield_without_target(context: _ErrorContext) -> str:
    if context.last == "YIELD" and context.kind != "_EQUAL":
        return "a yield names its target facet: yield Name(attribute = value)"
    if [token.type for token in context.before[-2:]] == [
        "YIELD",
        "NAME",
    ] and context.kind == "_EQUAL":
        return "a yield names its target facet: yield Name(attribute = value)"
    return ""


def _word_as_name(context: _ErrorContext) -> str:
    if context.kind in ("_EQUAL", "COLON") and context.last in _RESERVED:
        word = str(context.before[-1])
    elif (context.kind in _RESERVED and "NAME" in context.accepted) or (
        context.kind in _HALF_RESERVED
        and _ASSIGNED.match(context.text, context.at + len(context.word))
    ):
        word = context.word
    else:
        return ""
    return f"`{word}` is a keyword and cannot be a name here"


def _declaration_in_a_block(context: _ErrorContext) -> str:
    words = {context.word, str(context.before[-1])} if context.before else {context.word}
    braces = [token for token in context.opened if token.type == "LBRACE"]
    if not words & _DECLARATION_WORDS or not braces:
        return ""
    if "namespace" in words:
        return "namespaces cannot be nested: close the one before, or write its full name, a.b"
    return f"is the `{{` of line {braces[-1].line} closed? A block cannot contain a declaration"


def _not_closed(context: _ErrorContext) -> str:
    if not context.opened:
        return ""
    token = context.opened[-1]
    is_closed_by_another = context.kind in _CLOSES and _CLOSES[context.kind] != token.type
    if context.text[context.at :].strip() and not is_closed_by_another:
        return ""
    return f"the `{_PAIRS[token.type]}` of line {token.line}, column {token.column} is not closed"


def _too_many_closed(context: _ErrorContext) -> str:
    return "no bracket is open here" if context.kind in _CLOSES and not context.opened else ""


def _assignment_for_comparison(context: _ErrorContext) -> str:
    if context.kind == "_EQUAL" and context.is_after_value:
        return "to compare, write `==`"
    return ""


def _comparison_for_assignment(context: _ErrorContext) -> str:
    if context.word == "==" and "_EQUAL" in context.accepted:
        return "to assign a value, write `=`"
    return ""


def _word_operator(context: _ErrorContext) -> str:
    if context.word in _WORD_OPERATORS:
        return f"write `{_WORD_OPERATORS[context.word]}` for `{context.word}`"
    return f"write `{context.word * 2}`" if context.word in ("&", "|") else ""


def _chained_comparison(context: _ErrorContext) -> str:
    if context.kind == "COMPARE" and context.is_after_value:
        return "comparisons cannot be chained: write a < b && b < c"
    return ""


def _stray_brace(context: _ErrorContext) -> str:
    if context.kind != "LBRACE":
        return ""
    if "BRACED_SCRIPT" in context.accepted:
        return "the script that begins here is not closed"
    return "a map is written #{…}" if "_MAP" in context.accepted else ""


def _argument_without_name(context: _ErrorContext) -> str:
    if not context.is_in_parentheses:
        return ""
    if context.last == "COMMA" and context.kind == "RPAR":
        return "remove the last comma"
    is_a_name_missing = "NAME" in context.accepted and "_OR" not in context.accepted
    if "_EQUAL" in context.accepted or (is_a_name_missing and "STRING" not in context.accepted):
        return "a name is required: `name = value` in a call, `name: Type` in a declaration"
    return ""


def _step_after_yield(context: _ErrorContext) -> str:
    if "YIELD" in context.accepted and "NAME" not in context.accepted and context.kind == "NAME":
        return "write the steps of a block before its yields"
    return ""


def _bare_returns(context: _ErrorContext) -> str:
    if context.last == "_ARROW" and set(context.accepted) == {"LPAR"}:
        return "write returns in parentheses: => (name: Type)"
    return ""


def _call_without_parentheses(context: _ErrorContext) -> str:
    if context.last == "NAME" and "LPAR" in context.accepted and not context.is_after_value:
        return f"parentheses are required, even if empty: {context.before[-1]!s}()"
    return ""


def _step_without_name(context: _ErrorContext) -> str:
    if context.kind == "LPAR" and context.last == "NAME" and "_EQUAL" in context.accepted:
        return f"a step needs a name: name = {context.before[-1]!s}(…)"
    return ""


def _misspelt(context: _ErrorContext) -> str:
    if context.last == "NAME" and "_EQUAL" in context.accepted:
        word = str(context.before[-1])  # parsed as the name of a step
    else:
        word = context.word
    near = difflib.get_close_matches(word.lower(), _KEYWORDS, n=1, cutoff=0.8)
    meant = _KEYWORDS[near[0]] if near else word
    return f"did you mean `{meant}`?" if meant != word else ""


def _number(context: _ErrorContext) -> str:
    if not context.found and context.word.isdigit():
        return "write numbers as 12, 1.5 or 2.0e3"
    return ""


def _use_outside(context: _ErrorContext) -> str:
    return (
        "`use` is allowed only in a namespace"
        if context.kind == "USE" and not context.opened
        else ""
    )


def _foreign_letter(context: _ErrorContext) -> str:
    if context.found is None and re.match(r"[^\W\d_]", context.word) and not context.word.isascii():
        return "names consist of the letters A-Z and a-z, digits and _"
    return ""


_Recognise: TypeAlias = Callable[[_ErrorContext], str]
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
