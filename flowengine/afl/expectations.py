"""Describe the expected tokens of a syntax error in words of the language."""

from __future__ import annotations

from collections.abc import Collection

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
_OMITTED = frozenset(["SEMICOLON", "DOC", "DOT"])


def expected(terminals: Collection[str]) -> str:
    """Describe the expected terminals of the grammar."""
    remaining = set(terminals)
    if len(remaining) > 1:
        remaining -= _OMITTED
    words = []
    for group, word in _GROUPS:
        if group <= remaining:
            remaining -= group
            words.append(word)
    words += sorted({_word(terminal) for terminal in remaining})
    if len(words) < 2:
        return "".join(words) or "nothing more"
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _word(terminal: str) -> str:
    return _WORDS.get(terminal, f"`{terminal.strip('_').lower()}`")
