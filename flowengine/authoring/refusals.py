"""What Python may ask of a symbol in vain, and what to write instead: one table.

Every method here needs the value itself. A method that is missing would not be
refused but answered by `object`, silently and wrongly, or by Python with an error
that names no cure.
"""

from __future__ import annotations

_IN_A_FACET = "that is work for an event facet: @event_facet def …, called with this value"
_LOOP = "to do something for each item use foreach(items, lambda item: …)"
_TEXT = "join text with concat(…), or build it in an event facet"
_OPERATOR = "the operators of a program are + - * / % == != < <= > >= & | ~; " + _IN_A_FACET
_FIXED = "a value of the run is never changed in place; make a new one in an event facet"
_KEPT = "pass it to a facet or return it; the run keeps the value"

#: dunder → what the author tried, and what to write instead
REFUSALS: dict[str, tuple[str, str]] = {
    "next": ("take the next item of", _LOOP),
    "reversed": ("reverse", _IN_A_FACET),
    "len": ("take the length of", _IN_A_FACET),
    "contains": ("look with `in` into", "use contains(container, item) or is_in(item, container)"),
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
        ("use an operator a program does not have on", _OPERATOR),
    ),
}  # fmt: skip
