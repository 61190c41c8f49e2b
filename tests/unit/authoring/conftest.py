"""Each test begins with an empty registry, so that names need not differ between tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowengine.authoring.registry import empty_registry


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    with empty_registry():
        yield
