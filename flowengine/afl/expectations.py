"""Say in words of the language what could have stood somewhere."""

from __future__ import annotations

from collections.abc import Collection

_VALUE = frozenset(["NAME", "STRING", "INTEGER", "FLOAT", "TRUE", "FALSE", "NULL", "DOLLAR"])
_OPERATOR = frozenset(["ADD", "MULTIPLY", "_JOIN", "_AND", "_OR"])
_DECLARATION = frozenset(["FACET", "EVENT", "WORKFLOW", "SCHEMA", "IMPLICIT"])
_DECLARED = "`facet`, `event facet`, `workflow`, `schema`, `implicit`"

#: Tokens that are one thing to a reader, said by one word when all of them fit.
_TOGETHER: tuple[tuple[frozenset[str], str], ...] = (
    (_VALUE | {"LPAR", "LSQB", "_MAP", "ADD", "_NOT"}, "a value"),
    (_OPERATOR | {"COMPARE", "LSQB"}, "an operator"),
    (_OPERATOR | {"LSQB"}, "an operator"),  # behind a comparison
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
#: They may stand nearly everywhere, and nobody misses them.
_UNSAID = frozenset(["SEMICOLON", "DOC", "DOT"])


def expected(terminals: Collection[str]) -> str:
    """Name what could have followed: the grammar's terminals as a person calls them."""
    left = set(terminals)
    if len(left) > 1:
        left -= _UNSAID
    said = []
    for group, word in _TOGETHER:
        if group <= left:
            left -= group
            said.append(word)
    said += sorted({_word(terminal) for terminal in left})
    if len(said) < 2:
        return "".join(said) or "nothing more"
    return f"{', '.join(said[:-1])} or {said[-1]}"


def _word(terminal: str) -> str:
    return _WORDS.get(terminal, f"`{terminal.strip('_').lower()}`")
