"""The Python operations that a symbol refuses, each with its replacement.

Every method here needs the value itself. Without an entry, `object` would answer
silently and wrongly, or Python would raise an error without a cure.
"""

from __future__ import annotations

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
