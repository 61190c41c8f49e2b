"""The registry of facets and workflows, for tests that define their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowengine.authoring import registry


@contextmanager
def empty_registry() -> Iterator[None]:
    """Empty the registry and restore it at the end; built-in facets stay."""
    registered = (registry._event_facets, registry._workflows, registry._standard)
    kept = [each.copy() for each in registered]
    with registry._lock:
        for each in registered[:2]:
            each.clear()
        registry.note_change()
    try:
        yield
    finally:
        with registry._lock:
            for each, before in zip(registered, kept, strict=True):
                each.clear()
                each.update(before)
            registry.note_change()
