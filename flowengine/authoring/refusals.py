"""The Python operations that a symbol refuses, each with its replacement.

Every operation here needs the value itself. Without an entry, `object` would answer
silently and wrongly, or Python would raise an error without a cure.

``if``, ``and``, ``not``, ``a < b < c`` and ``in`` all call ``bool(symbol)``. The source at the
position of the author's frame distinguishes them, so that the error names the right replacement.
"""

from __future__ import annotations

import ast
import linecache
from itertools import islice

from flowengine.authoring.locations import user_frame

_IN_A_FACET = "do it in an event facet: @event_facet def …, called with this value"
_LOOP = "for each item use foreach(items, lambda item: …)"
_TEXT = "join text with concat(…), or build it in an event facet"
_OPERATOR = "the operators of a program are + - * / % == != < <= > >= & | ~; " + _IN_A_FACET
_FIXED = "a value of the run is immutable; make a new one in an event facet"
_KEPT = "pass it to a facet or return it; the run stores the value"

#: dunder → attempted operation, replacement
REFUSALS: dict[str, tuple[str, str]] = {
    "next": ("take the next item of", _LOOP),
    "reversed": ("reverse", _IN_A_FACET),
    "len": ("take the length of", _IN_A_FACET),
    "contains": ("search with `in` in", "use contains(container, item) or is_in(item, container)"),
    "str": ("make text of", _TEXT),
    "format": ("format (as in an f-string)", _TEXT),
    "bytes": ("make bytes of", _IN_A_FACET),
    "fspath": ("open or join as a path", _IN_A_FACET),
    **dict.fromkeys(["int", "float", "complex"], ("make a Python number of", _IN_A_FACET)),
    "index": ("count or index with", f"{_IN_A_FACET}; for a number of rounds, {_LOOP}"),
    **dict.fromkeys(["round", "trunc", "floor", "ceil", "abs"], ("round", _IN_A_FACET)),
    "hash": ("hash (as a key or in a set)", "keep it in a list, or use it as a dict's value"),
    **dict.fromkeys(["reduce", "reduce_ex"], ("pickle", _KEPT)),
    **dict.fromkeys(["copy", "deepcopy"], ("copy", _KEPT)),
    "setattr": ("set a field of", _FIXED),
    "delattr": ("delete a field of", _FIXED),
    "setitem": ("set an item of", _FIXED),
    "delitem": ("delete an item of", _FIXED),
    "call": ("call (as a function or method)", _IN_A_FACET),
    "await": ("await", "call the facet without `await`: the engine waits for its result"),
    **dict.fromkeys(["aiter", "anext"], ("iterate asynchronously over", _LOOP)),
    **dict.fromkeys(
        ["enter", "exit", "aenter", "aexit"],
        ("open a `with` block on", "open and close it inside one event facet"),
    ),
    **dict.fromkeys(
        [side + name for name in ("floordiv", "pow", "matmul", "lshift", "rshift", "xor", "divmod")
         for side in ("", "r")] + ["pos"],
        ("use an operator that programs lack on", _OPERATOR),
    ),
}  # fmt: skip

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
