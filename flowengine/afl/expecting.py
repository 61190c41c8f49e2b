"""Say in words of the language what could have stood somewhere."""

from __future__ import annotations

from collections.abc import Collection

#: Tokens that are one thing to a reader, said by one word when all of them fit.
_TOGETHER: tuple[tuple[frozenset[str], str], ...] = (
    (
        frozenset(
            "NAME STRING INTEGER FLOAT TRUE FALSE NULL DOLLAR LPAR LSQB _MAP ADD _NOT".split()
        ),
        "a value",
    ),
    (frozenset("ADD MULTIPLY COMPARE _JOIN _AND _OR LSQB".split()), "an operator"),
    (frozenset("ADD MULTIPLY _JOIN _AND _OR LSQB".split()), "an operator"),
    (frozenset("ADD MULTIPLY _JOIN _AND _OR".split()), "an operator"),
    (
        frozenset("NAMESPACE FACET EVENT WORKFLOW SCHEMA IMPLICIT".split()),
        "a declaration (`namespace`, `facet`, `event facet`, `workflow`, `schema`, `implicit`)",
    ),
    (
        frozenset("USE FACET EVENT WORKFLOW SCHEMA IMPLICIT".split()),
        "a declaration (`use`, `facet`, `event facet`, `workflow`, `schema`, `implicit`)",
    ),
    (
        frozenset("FACET EVENT WORKFLOW SCHEMA IMPLICIT".split()),
        "a declaration (`facet`, `event facet`, `workflow`, `schema`, `implicit`)",
    ),
    (frozenset("NAME SYS_LOG SYS_ASSERT".split()), "a step (`name = Facet(…)`)"),
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
