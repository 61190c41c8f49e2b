"""Read AFL text into program JSON, in time that grows with the text and not faster."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from lark import Lark, Token, UnexpectedCharacters, UnexpectedInput, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from flowengine.afl import scripts
from flowengine.afl.expecting import expected
from flowengine.afl.hints import hint
from flowengine.afl.reading import Mistake, Node, Reader
from flowengine.errors import InvalidText

#: How deep a program may be nested. What works on programs recurses, and Python stops at a
#: thousand calls: here the text's author is told, not whoever runs it.
DEEPEST = 150
_BRACKETS = {"LPAR": 1, "LSQB": 1, "LBRACE": 5}  # a block takes more calls than a parenthesis
_CLOSING = frozenset(["RPAR", "RSQB", "RBRACE"])
_OPERATORS = frozenset(["ADD", "MULTIPLY", "COMPARE", "_OR", "_AND", "_NOT"])
#: Behind these another expression begins.
_FRESH = frozenset(["COMMA", "_CASE", "_ARROW", "_FOREACH", "ANDTHEN"])


@cache
def _grammar() -> Lark:
    return Lark.open(
        "grammar.lark", rel_to=__file__, parser="lalr", lexer="contextual", transformer=Reader()
    )


@dataclass(slots=True)
class Opened:
    """A bracket that is not closed yet."""

    token: Token
    operators: int = 0  #: of the expression under way in it: each is one level


@dataclass(slots=True)
class Trail:
    """What was read so far, as far as it explains an error."""

    text: str
    last: list[Token] = field(default_factory=list)  #: the newest tokens, at most three
    opened: list[Opened] = field(default_factory=list)
    depth: int = 0

    def follow(self, token: Token) -> None:
        """Note a token; raises Mistake when it lies too deep."""
        self.last = [*self.last[-2:], token]
        if token.type in _BRACKETS:
            self.opened.append(Opened(token))
            self.depth += _BRACKETS[token.type]
        elif token.type in _CLOSING and self.opened:
            closed = self.opened.pop()
            self.depth -= _BRACKETS[closed.token.type] + closed.operators
        elif self.opened and token.type in _OPERATORS:
            self.opened[-1].operators += 1
            self.depth += 1
        elif self.opened and token.type in _FRESH:
            self.depth -= self.opened[-1].operators
            self.opened[-1].operators = 0
        if self.depth > DEEPEST:
            raise Mistake(
                token, "this is nested too deep; give a part of it a step or a facet of its own"
            )


def read_text(text: str, file: str = "") -> Node:
    """Return the program JSON that AFL's compiler would write of this text.

    Names are not looked up: `compile_text` does that too. Raises InvalidText.
    """
    text = text.removeprefix("\ufeff")
    if any(mark in text for mark in (scripts.OPEN, scripts.CLOSE)):
        at = min(found for mark in (scripts.OPEN, scripts.CLOSE) if (found := text.find(mark)) >= 0)
        raise _at(text, file, at, "this character is no text")
    parser = _grammar().parse_interactive(scripts.marked(text))
    trail = Trail(text)
    try:
        for token in parser.iter_parse():
            trail.follow(token)
        read: Node = parser.feed_eof()
        return read
    except Mistake as mistake:
        raise _at(text, file, mistake.token.start_pos or 0, mistake.what) from None
    except UnexpectedInput as problem:
        raise _unexpected(problem, parser, trail, file) from None


def _unexpected(
    problem: UnexpectedInput, parser: InteractiveParser, trail: Trail, file: str
) -> InvalidText:
    text = trail.text
    found: Token | None = None
    if isinstance(problem, UnexpectedToken) and problem.token.type != "$END":
        found = problem.token
        at = found.start_pos or 0
    elif isinstance(problem, UnexpectedCharacters):
        at = problem.pos_in_stream or 0
    else:
        at = len(text.rstrip())
    # A token that does not fit has been followed already.
    before = [token for token in trail.last if (token.start_pos or 0) < at]
    opened = [bracket.token for bracket in trail.opened if (bracket.token.start_pos or 0) < at]
    wanted = expected(parser.accepts())
    what = f"expected {wanted}, found {_shown(text, at, found)}"
    return _at(text, file, at, what, hint(text, at, found, before, opened, wanted))


def _shown(text: str, at: int, found: Token | None) -> str:
    if at >= len(text):
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
