"""What to write instead, when Python wants to decide by a value of the run.

``if``, ``and``, ``not``, ``a < b < c`` and ``in`` all ask a symbol the same question, whether it
is true. Which of them it was is read from the source at the place that the author's frame has
reached, so that the error can name the one cure that fits.
"""

from __future__ import annotations

import ast
import linecache
from itertools import islice

from flowengine.authoring.locations import user_frame

_IF = "instead of `if` write when(condition, lambda: …, otherwise=lambda: …)"
_IN = "instead of `x in items` write is_in(x, items)"
_CHAIN = "instead of `a < b < c` write and_(a < b, b < c)"
_ALL = (
    f"{_IF}; instead of `and`, `or` and `not` write and_(…), or_(…) and not_(…), or & | ~; "
    f"{_CHAIN}; {_IN}"
)
_CURES: dict[type, str] = {
    ast.If: _IF,
    ast.IfExp: _IF,
    ast.And: "instead of `and` write and_(a, b), or a & b",
    ast.Or: "instead of `or` write or_(a, b), or a | b",
    ast.Not: "instead of `not` write not_(a), or ~a",
    ast.In: _IN,
    ast.NotIn: "instead of `x not in items` write not_(is_in(x, items))",
    ast.Assert: "instead of `assert` raise an error in an event facet",
    ast.comprehension: "the `if` of a comprehension belongs into an event facet that chooses, or "
    "write when(…) in the body of a foreach",
}


def cure_for_deciding() -> str:
    """What to write in place of the construct that the author's code is at."""
    place = _place()
    if place is None:
        return _ALL
    file, span = place
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return _ALL
    for parent in ast.walk(tree):
        for child in ast.iter_child_nodes(parent):
            if isinstance(child, ast.expr | ast.stmt) and _span(child) == span:
                found = _asking(child) or _asking_of(parent, child)
                return found if isinstance(found, str) else _CURES.get(type(found), _ALL)
    return _ALL


def _place() -> tuple[str, tuple[int | None, ...]] | None:
    frame = user_frame()
    if frame is None:
        return None
    # One instruction takes two bytes; positions are listed by instruction.
    found = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if found is None:
        return None
    line, end_line, column, end_column = found
    return frame.f_code.co_filename, (line, column, end_line, end_column)


def _span(node: ast.expr | ast.stmt) -> tuple[int | None, ...]:
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def _asking(node: ast.AST) -> ast.AST | str | None:
    """What a construct itself asks of its parts."""
    match node:
        case ast.If() | ast.IfExp() | ast.Assert():
            return node
        case ast.Compare(ops=[_, _, *_]):
            return _CHAIN
        case ast.Compare(ops=[(ast.In() | ast.NotIn()) as operator]):
            return operator
        case ast.BoolOp(op=operation) | ast.UnaryOp(op=ast.Not() as operation):
            return operation
    return None


def _asking_of(parent: ast.AST, child: ast.AST) -> ast.AST | None:
    """What the construct around an expression asks of it."""
    match parent:
        case ast.BoolOp(op=operation) | ast.UnaryOp(op=ast.Not() as operation):
            return operation
        case ast.If(test=test) | ast.IfExp(test=test) | ast.Assert(test=test) if test is child:
            return parent
        case ast.comprehension(ifs=conditions) if child in conditions:
            return parent
    return None
