"""Parse AFL text to program JSON in linear time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from lark import Lark, Token, UnexpectedCharacters, UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from flowengine.afl.syntax_errors import SyntaxProblem, expected, hint
from flowengine.afl.tokens import CLOSE, OPEN, mark_scripts
from flowengine.afl.transformer import Node, ProgramTransformer, SyntaxMistake
from flowengine.errors import InvalidText

#: Deepest nesting of a program, in levels of an expression. Later passes recurse, up to five
#: calls for a level, and Python's limit is 1000 calls: refuse deeper text at its author. A map of
#: maps has three levels of JSON for each, and must stay below `max_program_depth`.
MAX_DEPTH = 130
_BRACKETS = frozenset(["LPAR", "LSQB", "LBRACE"])
_CLOSING = frozenset(["RPAR", "RSQB", "RBRACE"])
_BLOCK_LEVELS = 3  # levels that a block counts for
_OPERATORS = frozenset(["ADD", "MULTIPLY", "COMPARE", "_OR", "_AND", "_NOT"])
_VALUE_ENDS = frozenset(["NAME", "RSQB", "RPAR", "RBRACE", "STRING"])  # before an index `[`
#: A new expression starts after these.
_EXPRESSION_STARTS = frozenset(["COMMA", "_CASE", "_ARROW", "_FOREACH", "ANDTHEN"])
_PROGRAM, _EXPRESSION = "start", "expr"  #: rules of the grammar that a text may consist of


@cache
def _grammar() -> Lark:
    return Lark.open(
        "grammar.lark",
        rel_to=__file__,
        start=[_PROGRAM, _EXPRESSION],
        parser="lalr",
        lexer="contextual",
        transformer=ProgramTransformer(),
    )


@dataclass(slots=True)
class _TokenHistory:
    """The tokens read so far, for error messages."""

    last: list[Token] = field(default_factory=list)  #: latest tokens, at most three
    count: int = 0  #: number of tokens
    opened: list[Token] = field(default_factory=list)  #: unclosed brackets
    #: Levels of each open bracket and of the current expression in it; the first entry is the
    #: text itself. An operator is a level, which contains its left side.
    _levels: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    _depth: int = 0

    def record(self, token: Token) -> None:
        """Record a token; raises SyntaxMistake if it is nested too deep."""
        before = self.last[-1].type if self.last else ""
        self.last = [*self.last[-2:], token]
        self.count += 1
        if token.type in _OPERATORS or (token.type == "LSQB" and before in _VALUE_ENDS):
            self._deepen(1)
        elif token.type in _EXPRESSION_STARTS:
            self._deepen(-self._levels[-1][1])
        if token.type in _BRACKETS:
            weight = _BLOCK_LEVELS if token.type == "LBRACE" and before != "_MAP" else 1
            self.opened.append(token)
            self._levels.append((weight, 0))
            self._depth += weight
        elif token.type in _CLOSING:
            self.opened.pop()
            self._depth -= sum(self._levels.pop())
        if self._depth > MAX_DEPTH:
            raise SyntaxMistake(
                token, "this is nested too deep; move a part of it to its own step or facet"
            )

    def _deepen(self, levels: int) -> None:
        weight, inner = self._levels[-1]
        self._levels[-1] = weight, inner + levels
        self._depth += levels


def read_text(text: str | bytes, file: str = "") -> Node:
    """Parse a text to the program JSON of AFL's compiler; raises InvalidText.

    Bytes are UTF-8. Names are not resolved; see `compile_text`.
    """
    return _read(text, file, _PROGRAM)


def read_expression(text: str) -> Node:
    """Parse a text that is one expression to its node of program JSON; raises InvalidText.

    The error's line and column are those in the text of the expression.
    """
    return _read(text, "", _EXPRESSION)


def _read(text: str | bytes, file: str, rule: str) -> Node:
    text = (_decode(text, file) if isinstance(text, bytes) else text).removeprefix("\ufeff")
    reserved = [at for mark in (OPEN, CLOSE) if (at := text.find(mark)) >= 0]
    if reserved:
        raise _at(text, file, min(reserved), "this character is not allowed in text")
    marked = mark_scripts(text)
    parser = _grammar().parse_interactive(marked, start=rule)
    history = _TokenHistory()
    pending: Token | None = None  # given to the parser, which may refuse it
    unexpected: Token | None = None
    try:
        for token in parser.iter_parse():
            if pending is not None:
                history.record(pending)
            pending = token
        if pending is not None:
            history.record(pending)
        pending = None
        read: Node = parser.feed_eof()  # type: ignore[no-untyped-call]
        return read
    except SyntaxMistake as mistake:
        raise _at(text, file, _start(mistake.token), mistake.what) from None
    except UnexpectedCharacters as problem:
        at = problem.pos_in_stream or 0
    except UnexpectedToken as problem:
        unexpected = None if problem.token.type == "$END" else problem.token
        at = len(text.rstrip()) if unexpected is None else _start(unexpected)
        if unexpected is pending:
            pending = None
            parser = _replay(marked, history.count, rule)
    if pending is not None:
        history.record(pending)  # the lexer failed after it
    accepted: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
    what = f"expected {expected(accepted)}, found {_token_text(text, at, unexpected)}"
    error = SyntaxProblem(text, at, unexpected, history.last, history.opened, accepted)
    raise _at(text, file, at, what, hint(error))


def _decode(stored: bytes, file: str) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError as problem:
        before = stored[: problem.start].decode()
        what = f"the byte {stored[problem.start]:#04x} is not UTF-8"
        raise _at(before, file, len(before), what) from None


def _start(token: Token) -> int:
    return token.start_pos or 0


def _replay(marked: str, count: int, rule: str) -> InteractiveParser:
    """Return a parser in the state after `count` tokens.

    A parser that refuses a token has already reduced, and lost the other expected tokens.
    """
    parser = _grammar().parse_interactive(marked, start=rule)
    for position, _ in enumerate(parser.iter_parse()):
        if position == count:
            break
    return parser


def _token_text(text: str, at: int, unexpected: Token | None) -> str:
    if not text[at:].strip():
        return "the end of the text"
    if unexpected is None:
        return repr(text[at])
    shown = text[at : unexpected.end_pos].partition("\n")[0]
    return f"`{shown if len(shown) <= 40 else shown[:39] + '…'}`"


def _at(text: str, file: str, at: int, what: str, cure: str = "") -> InvalidText:
    before = text[:at]
    line = before.count("\n") + 1
    begin = before.rfind("\n") + 1
    source = text[begin:].partition("\n")[0].rstrip("\r")
    return InvalidText(file, line, at - begin + 1, what, source, cure)
