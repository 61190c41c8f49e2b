"""Merge yields in program order.

Two lists are concatenated; otherwise the later value in program or item order wins, whatever
the order in time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowengine.program.nodes import Json


class Merge:
    """The values of one step while yields are merged into them."""

    def __init__(self, values: dict[str, Any], read: Callable[[Any], Json]) -> None:
        self.values = dict(values)
        self._read = read
        self._owned: set[str] = set()  # lists created here: they may be extended in place

    def add(self, attributes: dict[str, Any]) -> None:
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

    def set_empty_list(self, name: str) -> None:
        """Set the attribute that an empty foreach would have filled with a list."""
        self.values.setdefault(name, [])
