"""Explain syntax errors: the expected tokens in words of the language, and a hint.

A hint recognises a common mistake and suggests the correction.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from lark import Token

_VALUE = frozenset(["NAME", "STRING", "INTEGER", "FLOAT", "TRUE", "FALSE", "NULL", "DOLLAR"])
_OPERATOR = frozenset(["ADD", "MULTIPLY", "_JOIN", "_AND", "_OR"])
_DECLARATION = frozenset(["FACET", "EVENT", "WORKFLOW", "SCHEMA", "IMPLICIT"])
_DECLARED = "`facet`, `event facet`, `workflow`, `schema`, `implicit`"

#: Tokens with one common description, used if all of them are expected.
_GROUPS: tuple[tuple[frozenset[str], str], ...] = (
    (_VALUE | {"LPAR", "LSQB", "_MAP", "ADD", "_NOT"}, "a value"),
    (_OPERATOR | {"COMPARE", "LSQB"}, "an operator"),
    (_OPERATOR | {"LSQB"}, "an operator"),  # after a comparison
    (_OPERATOR, "an operator"),
    (_DECLARATION | {"NAMESPACE"}, f"a declaration (`namespace`, {_DECLARED})"),
    (_DECLARATION | {"USE"}, f"a declaration (`use`, {_DECLARED})"),
    (_DECLARATION, f"a declaration ({_DECLARED})"),
    (frozenset(["NAME", "SYS_LOG", "SYS_ASSERT"]), "a step (`name = Facet(…)`)"),
)
#: Descriptions of single tokens; others are keywords.
_WORDS = {
    "NAME": "a name",
    "STRING": 'a string ("…")',
    "INTEGER": "a number",
    "FLOAT": "a number",
    "BRACED_SCRIPT": "`{`",
    "COLON": "`:`",
    "COMMA": "`,`",
    "DOLLAR": "`$`",
    "DOT": "`.`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "USE": "`use`",
    "ANDTHEN": "`andThen`",
    "SYS_LOG": "`sys.log`",
    "SYS_ASSERT": "`sys.assert`",
    "COMPARE": "a comparison",
    "ADD": "`+`, `-`",
    "MULTIPLY": "`*`, `/`, `%`",
    "_JOIN": "`++`",
    "_OR": "`||`",
    "_AND": "`&&`",
    "_NOT": "`!`",
    "_ARROW": "`=>`",
    "_EQUAL": "`=`",
    "_MAP": "`#{`",
    "_OTHERWISE": "`_`",
    "$END": "the end of the text",
}
#: Allowed nearly everywhere, so not worth listing.
_OMITTED = frozenset(["SEMICOLON", "DOC", "DOT", "VERSION"])


def expected(terminals: Collection[str]) -> str:
    remaining = set(terminals)
    if len(remaining) > 1:
        remaining -= _OMITTED
    words = []
    for group, word in _GROUPS:
        if group <= remaining:
            remaining -= group
            words.append(word)
    words += sorted({_WORDS.get(name, f"`{name.strip('_').lower()}`") for name in remaining})
    if len(words) < 2:
        return "".join(words) or "nothing more"
    return f"{', '.join(words[:-1])} or {words[-1]}"


# --- hints ---

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
class SyntaxProblem:
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


def hint(error: SyntaxProblem) -> str:
    """Return the correction of the probable mistake, or an empty text."""
    # The first match wins: specific mistakes come before general ones.
    mistakes = (_texts, _names, _brackets, _operators, _forms, _words)
    return next((cure for recognise in mistakes for cure in recognise(error)), "")


def _texts(error: SyntaxProblem) -> Iterator[str]:
    """Strings and comments."""
    if not error.unexpected and error.word == '"':
        yield "the string that begins here is not closed"
    for token in reversed(error.before):
        if token.type == "STRING" and "\n" in token:
            yield f"a string spans line {token.line} to line {token.end_line}: was it closed?"
    if error.text.startswith("/*", error.at):
        yield "the comment that begins here is not closed"
    if error.word == "'":
        yield 'write strings in double quotes: "…"'


def _names(error: SyntaxProblem) -> Iterator[str]:
    """Missing names, keywords as names, declarations in a block."""
    kinds = [token.type for token in (*error.before, error.unexpected) if token]
    if kinds[-3:] == ["YIELD", "NAME", "_EQUAL"] or (
        error.last == "YIELD" and error.kind != "_EQUAL"
    ):
        yield "a yield names its target facet: yield Name(attribute = value)"
    if error.kind in ("_EQUAL", "COLON") and error.last in _RESERVED:
        yield f"`{error.before[-1]!s}` is a keyword and cannot be a name here"
    elif (error.kind in _RESERVED and "NAME" in error.accepted) or (
        error.kind in _HALF_RESERVED and _ASSIGNED.match(error.text, error.at + len(error.word))
    ):
        yield f"`{error.word}` is a keyword and cannot be a name here"
    words = {error.word, *map(str, error.before[-1:])}
    braces = [token for token in error.opened if token.type == "LBRACE"]
    if braces and "namespace" in words:
        yield "namespaces cannot be nested: close the one before, or write its full name, a.b"
    if braces and words & _DECLARATIONS:
        yield f"is the `{{` of line {braces[-1].line} closed? A block cannot contain a declaration"


def _brackets(error: SyntaxProblem) -> Iterator[str]:
    if not error.opened:
        if error.kind in _CLOSES:
            yield "no bracket is open here"
        return
    token = error.opened[-1]
    is_closed_by_another = error.kind in _CLOSES and _CLOSES[error.kind] != token.type
    if not error.text[error.at :].strip() or is_closed_by_another:
        bracket = _PAIRS[token.type]
        yield f"the `{bracket}` of line {token.line}, column {token.column} is not closed"


def _operators(error: SyntaxProblem) -> Iterator[str]:
    if error.kind == "_EQUAL" and error.is_after_value:
        yield "to compare, write `==`"
    if error.word == "==" and "_EQUAL" in error.accepted:
        yield "to assign a value, write `=`"
    if error.word in _WORD_OPERATORS:
        yield f"write `{_WORD_OPERATORS[error.word]}` for `{error.word}`"
    if error.word in ("&", "|"):
        yield f"write `{error.word * 2}`"
    if error.kind == "COMPARE" and error.is_after_value:
        yield "comparisons cannot be chained: write a < b && b < c"


def _forms(error: SyntaxProblem) -> Iterator[str]:
    """The forms of maps, scripts, arguments, blocks, returns and calls."""
    if error.kind == "LBRACE" and "BRACED_SCRIPT" in error.accepted:
        yield "the script that begins here is not closed"
    if error.kind == "LBRACE" and "_MAP" in error.accepted:
        yield "a map is written #{…}"
    if error.opened and error.opened[-1].type == "LPAR":
        if error.last == "COMMA" and error.kind == "RPAR":
            yield "remove the last comma"
        is_a_name_missing = "NAME" in error.accepted and not error.is_after_value
        if "_EQUAL" in error.accepted or (is_a_name_missing and "STRING" not in error.accepted):
            yield "a name is required: `name = value` in a call, `name: Type` in a declaration"
    if "YIELD" in error.accepted and "NAME" not in error.accepted and error.kind == "NAME":
        yield "write the steps of a block before its yields"
    if error.last == "_ARROW" and set(error.accepted) == {"LPAR"}:
        yield "write returns in parentheses: => (name: Type)"
    if error.last == "NAME" and "LPAR" in error.accepted and not error.is_after_value:
        yield f"parentheses are required, even if empty: {error.before[-1]!s}()"
    if error.kind == "LPAR" and error.last == "NAME" and "_EQUAL" in error.accepted:
        yield f"a step needs a name: name = {error.before[-1]!s}(…)"
    if error.kind == "USE" and not error.opened:
        yield "`use` is allowed only in a namespace"


def _words(error: SyntaxProblem) -> Iterator[str]:
    """Misspelt keywords, numbers and letters."""
    is_step = error.last == "NAME" and "_EQUAL" in error.accepted  # parsed as the name of a step
    word = str(error.before[-1]) if is_step else error.word
    near = difflib.get_close_matches(word.lower(), _KEYWORDS, n=1, cutoff=0.8)
    if near and _KEYWORDS[near[0]] != word:
        yield f"did you mean `{_KEYWORDS[near[0]]}`?"
    if error.unexpected is None and error.word.isdigit():
        yield "write numbers as 12, 1.5 or 2.0e3"
    if error.unexpected is None and re.match(r"[^\W\d_]", error.word) and not error.word.isascii():
        yield "names consist of the letters A-Z and a-z, digits and _"
