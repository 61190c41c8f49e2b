"""Recognise mistakes that are often made, and say what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lark import Token

_DECLARING = frozenset(["namespace", "facet", "event", "workflow", "schema", "implicit", "use"])
_SPOKEN = {"and": "&&", "or": "||", "not": "!"}
_RESERVED = frozenset(["YIELD", "TRUE", "FALSE", "NULL", "ANDTHEN", "CATCH"])
#: They may name a step, except behind a call, where they could go on with what was said.
_HALF_RESERVED = frozenset(
    ["NAMESPACE", "USE", "FACET", "EVENT", "WORKFLOW", "SCHEMA", "IMPLICIT", "_SCRIPT", "_PROMPT"]
)
_CAPITALISED = ("andThen", "startsWith", "endsWith")
_PLAIN = ("foreach", "when", "case", "catch", "yield", "script", "prompt", "with", "contains")
_KEYWORDS = {word.lower(): word for word in (*_DECLARING, *_CAPITALISED, *_PLAIN)}
_ASSIGNED = re.compile(r"\s*=[^=>]")
_PAIRS = {"LPAR": "(", "LSQB": "[", "LBRACE": "{"}
_CLOSES = {"RPAR": "LPAR", "RSQB": "LSQB", "RBRACE": "LBRACE"}


@dataclass(frozen=True, slots=True)
class _Scene:
    """Where the reading stopped."""

    text: str
    at: int
    found: Token | None  #: None: no token begins here
    before: Sequence[Token]  #: the newest last
    opened: Sequence[Token]  #: brackets that are not closed, the innermost last
    accepted: Collection[str]  #: the terminals that could have stood here

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
    def is_behind_a_value(self) -> bool:
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
    """Return the cure for what was probably meant, or nothing."""
    scene = _Scene(text, at, found, before, opened, accepted)
    for recognise in _MISTAKES:
        if cure := recognise(scene):
            return cure
    return ""


def _unclosed_string(scene: _Scene) -> str:
    if not scene.found and scene.word == '"':
        return "the string that begins here is not closed"
    for token in reversed(scene.before):
        if token.type == "STRING" and "\n" in token:
            return f"a string goes from line {token.line} to line {token.end_line}: was it closed?"
    return ""


def _unclosed_comment(scene: _Scene) -> str:
    if scene.text.startswith("/*", scene.at):
        return "the comment that begins here is not closed"
    return ""


def _single_quotes(scene: _Scene) -> str:
    return 'strings stand in double quotes: "…"' if scene.word == "'" else ""


def _yield_without_target(scene: _Scene) -> str:
    if scene.last == "YIELD" and scene.kind != "_EQUAL":
        return "a yield names the facet that it gives values to: yield Name(attribute = value)"
    if [token.type for token in scene.before[-2:]] == ["YIELD", "NAME"] and scene.kind == "_EQUAL":
        return "a yield names the facet that it gives values to: yield Name(attribute = value)"
    return ""


def _word_as_name(scene: _Scene) -> str:
    if scene.kind in ("_EQUAL", "COLON") and scene.last in _RESERVED:
        word = str(scene.before[-1])
    elif (scene.kind in _RESERVED and "NAME" in scene.accepted) or (
        scene.kind in _HALF_RESERVED and _ASSIGNED.match(scene.text, scene.at + len(scene.word))
    ):
        word = scene.word
    else:
        return ""
    return f"`{word}` is a word of the language and cannot be a name here"


def _declaration_in_a_block(scene: _Scene) -> str:
    words = {scene.word, str(scene.before[-1])} if scene.before else {scene.word}
    braces = [token for token in scene.opened if token.type == "LBRACE"]
    if not words & _DECLARING or not braces:
        return ""
    if "namespace" in words:
        return "a namespace stands in no other: close the one before, or write its whole name, a.b"
    return f"is the `{{` of line {braces[-1].line} closed? No declaration stands in a block"


def _not_closed(scene: _Scene) -> str:
    if not scene.opened:
        return ""
    token = scene.opened[-1]
    is_closed_by_another = scene.kind in _CLOSES and _CLOSES[scene.kind] != token.type
    if scene.text[scene.at :].strip() and not is_closed_by_another:
        return ""
    return f"the `{_PAIRS[token.type]}` of line {token.line}, column {token.column} is not closed"


def _too_many_closed(scene: _Scene) -> str:
    return "no bracket is open here" if scene.kind in _CLOSES and not scene.opened else ""


def _assignment_for_comparison(scene: _Scene) -> str:
    if scene.kind == "_EQUAL" and scene.is_behind_a_value:
        return "to compare, write `==`"
    return ""


def _comparison_for_assignment(scene: _Scene) -> str:
    if scene.word == "==" and "_EQUAL" in scene.accepted:
        return "to give a value, write `=`"
    return ""


def _spoken_operator(scene: _Scene) -> str:
    if scene.word in _SPOKEN:
        return f"write `{_SPOKEN[scene.word]}` for `{scene.word}`"
    return f"write `{scene.word * 2}`" if scene.word in ("&", "|") else ""


def _chained_comparison(scene: _Scene) -> str:
    if scene.kind == "COMPARE" and scene.is_behind_a_value:
        return "one comparison at a time: a < b && b < c"
    return ""


def _stray_brace(scene: _Scene) -> str:
    if scene.kind != "LBRACE":
        return ""
    if "BRACED_SCRIPT" in scene.accepted:
        return "the script that begins here is not closed"
    return "a map is written #{…}" if "_MAP" in scene.accepted else ""


def _argument_without_name(scene: _Scene) -> str:
    if not scene.is_in_parentheses:
        return ""
    if scene.last == "COMMA" and scene.kind == "RPAR":
        return "there is a comma too many"
    is_a_name_missing = "NAME" in scene.accepted and "_OR" not in scene.accepted
    if "_EQUAL" in scene.accepted or (is_a_name_missing and "STRING" not in scene.accepted):
        return "everything here has a name: `name = value` in a call, `name: Type` in a declaration"
    return ""


def _step_after_yield(scene: _Scene) -> str:
    if "YIELD" in scene.accepted and "NAME" not in scene.accepted and scene.kind == "NAME":
        return "the steps of a block stand before its yields"
    return ""


def _bare_returns(scene: _Scene) -> str:
    if scene.last == "_ARROW" and set(scene.accepted) == {"LPAR"}:
        return "returns stand in parentheses: => (name: Type)"
    return ""


def _call_without_parentheses(scene: _Scene) -> str:
    if scene.last == "NAME" and "LPAR" in scene.accepted and not scene.is_behind_a_value:
        return f"parentheses are needed, also empty ones: {scene.before[-1]!s}()"
    return ""


def _step_without_name(scene: _Scene) -> str:
    if scene.kind == "LPAR" and scene.last == "NAME" and "_EQUAL" in scene.accepted:
        return f"a step has a name: name = {scene.before[-1]!s}(…)"
    return ""


def _misspelt(scene: _Scene) -> str:
    if scene.last == "NAME" and "_EQUAL" in scene.accepted:
        word = str(scene.before[-1])  # it was taken for the name of a step
    else:
        word = scene.word
    near = difflib.get_close_matches(word.lower(), _KEYWORDS, n=1, cutoff=0.8)
    meant = _KEYWORDS[near[0]] if near else word
    return f"did you mean `{meant}`?" if meant != word else ""


def _number(scene: _Scene) -> str:
    if not scene.found and scene.word.isdigit():
        return "numbers are written 12, 1.5 or 2.0e3"
    return ""


def _use_outside(scene: _Scene) -> str:
    return "`use` stands in a namespace" if scene.kind == "USE" and not scene.opened else ""


def _foreign_letter(scene: _Scene) -> str:
    if scene.found is None and re.match(r"[^\W\d_]", scene.word) and not scene.word.isascii():
        return "names are made of the letters A-Z and a-z, digits and _"
    return ""


_Recognise: TypeAlias = Callable[[_Scene], str]
#: The first that recognises its mistake speaks: the sharper ones stand before the vaguer.
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
    _spoken_operator,
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
