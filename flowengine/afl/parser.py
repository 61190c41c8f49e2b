"""Read AFL text into program JSON, in time that grows with the text and not faster."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from flowengine.afl import scripts
from flowengine.afl.expectations import expected
from flowengine.afl.hints import hint
from flowengine.afl.transformer import Mistake, Node, Reader
from flowengine.errors import InvalidText

#: How deep a program may be nested, in levels of an expression. What works on programs
#: recurses, up to five calls for a level, and Python stops at a thousand: here the text's
#: author is told, and not whoever runs it.
DEEPEST = 150
_BRACKETS = frozenset(["LPAR", "LSQB", "LBRACE"])
_CLOSING = frozenset(["RPAR", "RSQB", "RBRACE"])
_BLOCK = 3  # a block takes the calls of so many levels
_OPERATORS = frozenset(["ADD", "MULTIPLY", "COMPARE", "_OR", "_AND", "_NOT"])
_VALUE_ENDS = frozenset(["NAME", "RSQB", "RPAR", "RBRACE", "STRING"])  # behind it `[` is an index
#: Behind these another expression begins.
_FRESH = frozenset(["COMMA", "_CASE", "_ARROW", "_FOREACH", "ANDTHEN"])


@cache
def _grammar() -> Lark:
    return Lark.open(
        "grammar.lark", rel_to=__file__, parser="lalr", lexer="contextual", transformer=Reader()
    )


@dataclass(slots=True)
class _Trail:
    """What was read so far, as far as it explains an error."""

    last: list[Token] = field(default_factory=list)  #: the newest tokens, at most three
    count: int = 0  #: of tokens
    opened: list[Token] = field(default_factory=list)  #: brackets that are not closed yet
    #: The levels of each bracket, and those of the expression under way in it; the first is
    #: the text itself. An operator is a level: its left side lies in it.
    _levels: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    _depth: int = 0

    def follow(self, token: Token) -> None:
        """Note a token; raises Mistake when it lies too deep."""
        before = self.last[-1].type if self.last else ""
        self.last = [*self.last[-2:], token]
        self.count += 1
        if token.type in _OPERATORS or (token.type == "LSQB" and before in _VALUE_ENDS):
            self._go_on(1)
        elif token.type in _FRESH:
            self._go_on(-self._levels[-1][1])
        if token.type in _BRACKETS:
            weight = _BLOCK if token.type == "LBRACE" and before != "_MAP" else 1
            self.opened.append(token)
            self._levels.append((weight, 0))
            self._depth += weight
        elif token.type in _CLOSING:
            self.opened.pop()
            self._depth -= sum(self._levels.pop())
        if self._depth > DEEPEST:
            raise Mistake(
                token, "this is nested too deep; give a part of it a step or a facet of its own"
            )

    def _go_on(self, levels: int) -> None:
        weight, within = self._levels[-1]
        self._levels[-1] = weight, within + levels
        self._depth += levels


def read_text(text: str | bytes, file: str = "") -> Node:
    """Return the program JSON that AFL's compiler would write of this text.

    Bytes are UTF-8. Names are not looked up: `compile_text` does that too. Raises InvalidText.
    """
    text = (_decoded(text, file) if isinstance(text, bytes) else text).removeprefix("\ufeff")
    foreign = [at for mark in (scripts.OPEN, scripts.CLOSE) if (at := text.find(mark)) >= 0]
    if foreign:
        raise _at(text, file, min(foreign), "this character is no text")
    marked = scripts.marked(text)
    parser = _grammar().parse_interactive(marked)
    trail = _Trail()
    offered: Token | None = None  # to the parser, which may refuse it
    found: Token | None = None
    try:
        for token in parser.iter_parse():
            if offered is not None:
                trail.follow(offered)
            offered = token
        if offered is not None:
            trail.follow(offered)
        offered = None
        read: Node = parser.feed_eof()  # type: ignore[no-untyped-call]
        return read
    except Mistake as mistake:
        raise _at(text, file, _begin(mistake.token), mistake.what) from None
    except UnexpectedCharacters as problem:
        at = problem.pos_in_stream or 0
    except UnexpectedToken as problem:
        found = None if problem.token.type == "$END" else problem.token
        at = len(text.rstrip()) if found is None else _begin(found)
        if found is offered:
            offered = None
            parser = _replayed(marked, trail.count)
    if offered is not None:
        trail.follow(offered)  # the lexer failed behind it
    accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
    what = f"expected {expected(accepted)}, found {_shown(text, at, found)}"
    raise _at(text, file, at, what, hint(text, at, found, trail.last, trail.opened, accepted))


def _decoded(stored: bytes, file: str) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError as problem:
        before = stored[: problem.start].decode()
        what = f"the byte {stored[problem.start]:#04x} is not UTF-8"
        raise _at(before, file, len(before), what) from None


def _begin(token: Token) -> int:
    return token.start_pos or 0


def _replayed(marked: str, count: int) -> InteractiveParser:
    """The parser as it was after so many tokens.

    One that refuses a token has reduced before, and forgot what else could have followed.
    """
    parser = _grammar().parse_interactive(marked)
    for position, _ in enumerate(parser.iter_parse()):
        if position == count:
            break
    return parser


def _shown(text: str, at: int, found: Token | None) -> str:
    if not text[at:].strip():
        return "the end of the text"
    if found is None:
        return repr(text[at])
    shown = text[at : found.end_pos].partition("\n")[0]
    return f"`{shown if len(shown) <= 40 else shown[:39] + '…'}`"


def _at(text: str, file: str, at: int, what: str, cure: str = "") -> InvalidText:
    before = text[:at]
    line = before.count("\n") + 1
    begin = before.rfind("\n") + 1
    source = text[begin:].partition("\n")[0].rstrip("\r")
    return InvalidText(file, line, at - begin + 1, what, source, cure)
