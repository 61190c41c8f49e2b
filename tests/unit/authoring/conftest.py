"""Each test starts with an empty registry, so that tests may reuse names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.registries import empty_registry


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    with empty_registry():
        yield
