"""What a path tells of the rows above: so that they can be asked for without climbing.

It is a guess by the marks of a path (`program.plan`), good enough to ask and never to decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flowengine.evaluator.records import row_key
from flowengine.program.plan import RowKind

#: One part of a path, by the mark it begins with and what it says.
_PART = re.compile(
    r"(?P<item>\[\d+\])|(?P<case>\[(?:case-\d+|default)\])|(?P<handler>\[(?:catch|catch-2|always)\])"
    r"|(?P<mixin>\[[^\]]*\])|(?P<block>\.(?:block|when|foreach)-\d+)|(?P<step>\.?[^.\[]+)"
)
#: What the row is that a part names.
_NAMES = {"item": RowKind.ITEM, "case": RowKind.CASE, "mixin": RowKind.STEP, "step": RowKind.STEP}
#: What holds the next part together, in a row of its own with the path so far.
_HOLDS = {"item": RowKind.FAN, "case": RowKind.WHEN, "step": RowKind.BLOCK}


def above(path: str) -> Iterator[str]:
    """Return the keys of the rows above the row of a path, the nearest first."""
    parts = list(_PART.finditer(path))
    for part, following in zip(reversed(parts[:-1]), reversed(parts[1:]), strict=True):
        so_far, kind = path[: part.end()], part.lastgroup or ""
        holding = _HOLDS.get(following.lastgroup or "")
        if holding is not None and kind not in ("item", "case"):
            yield row_key(holding, so_far)
        if kind in _NAMES:
            yield row_key(_NAMES[kind], so_far)
