"""Suggest the replacement for Python control flow that depends on a value of the run.

``if``, ``and``, ``not``, ``a < b < c`` and ``in`` all call ``bool(symbol)``. The source at the
position of the author's frame tells them apart, so that the error names the right replacement.
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
    ast.comprehension: "the `if` of a comprehension needs an event facet that filters, or "
    "write when(…) in the body of a foreach",
}


def cure_for_condition() -> str:
    """Return the replacement for the construct at the author's current position."""
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
                construct = _condition_of(child) or _condition_around(parent, child)
                if isinstance(construct, str):
                    return construct
                return _CURES.get(type(construct), _ALL)
    return _ALL


def _place() -> tuple[str, tuple[int | None, ...]] | None:
    frame = user_frame()
    if frame is None:
        return None
    # One instruction takes two bytes; positions are listed by instruction.
    position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if position is None:
        return None
    line, end_line, column, end_column = position
    return frame.f_code.co_filename, (line, column, end_line, end_column)


def _span(node: ast.expr | ast.stmt) -> tuple[int | None, ...]:
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def _condition_of(node: ast.AST) -> ast.AST | str | None:
    """Return the construct if it evaluates the truth of its own parts."""
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


def _condition_around(parent: ast.AST, child: ast.AST) -> ast.AST | None:
    """Return the enclosing construct if it evaluates the truth of an expression."""
    match parent:
        case ast.BoolOp(op=operation) | ast.UnaryOp(op=ast.Not() as operation):
            return operation
        case ast.If(test=test) | ast.IfExp(test=test) | ast.Assert(test=test) if test is child:
            return parent
        case ast.comprehension(ifs=conditions) if child in conditions:
            return parent
    return None
