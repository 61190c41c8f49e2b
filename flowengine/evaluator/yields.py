"""Lay yields over each other, in program order.

List and list are joined; otherwise the later in program or item order wins, whatever
the order in time was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowengine.program.nodes import Json


class Merge:
    """The values of one step while yields are laid over them."""

    def __init__(self, values: dict[str, Any], read: Callable[[Any], Json]) -> None:
        self.values = dict(values)
        self._read = read
        self._owned: set[str] = set()  # lists made here, which may be extended in place

    def lay(self, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            if name not in self.values:
                self.values[name] = value  # a large value stays unread
                continue
            old, new = self._read(self.values[name]), self._read(value)
            if not (isinstance(old, list) and isinstance(new, list)):
                self.values[name] = value
                self._owned.discard(name)
            elif name in self._owned:
                old.extend(new)
            else:
                self.values[name] = [*old, *new]
                self._owned.add(name)

    def lay_empty_list(self, name: str) -> None:
        """What an empty foreach leaves of an attribute that would have been a list."""
        self.values.setdefault(name, [])
