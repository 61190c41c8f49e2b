"""The registry returns event facets and workflows by name and alias."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine.authoring import (
    event_facet,
    event_facet_named,
    event_facet_names,
    workflow,
    workflow_named,
)
from flowengine.errors import AuthoringError
from flowengine.program.standard import is_built_in

SOURCE = """
from flowengine.authoring import event_facet
@event_facet(aliases={aliases})
def fetch(url: str) -> int:
    return {value}
"""


def _load(value: int, aliases: list[str], file: str = "/x/shop.py") -> Any:
    names: dict[str, Any] = {"__name__": "shop", "__file__": file}
    exec(compile(SOURCE.format(value=value, aliases=aliases), file, "exec"), names)
    return names["fetch"]


def own_names() -> list[str]:
    """Without built-in facets: a test before this may have switched on scripts."""
    return [name for name in event_facet_names() if not is_built_in(name)]


def test_a_facet_is_registered_under_its_name_and_aliases() -> None:
    fetch = _load(1, ["old.fetch"])
    assert event_facet_named("shop.fetch") is event_facet_named("old.fetch") is fetch
    assert own_names() == ["old.fetch", "shop.fetch"]
    assert event_facet_named("shop.other") is None


def test_workflows_have_a_registry_of_their_own() -> None:
    @workflow(name="shop.order")
    def order() -> None: ...

    assert workflow_named("shop.order") is order
    assert event_facet_named("shop.order") is None
    assert workflow_named("shop.fetch") is None


def test_a_reload_replaces_the_facet_and_drops_old_aliases() -> None:
    _load(1, ["old.fetch"])
    again = _load(2, ["older.fetch"])
    assert event_facet_named("shop.fetch") is again
    assert own_names() == ["older.fetch", "shop.fetch"]


def test_a_duplicate_name_is_refused_with_both_lines() -> None:
    _load(1, [])

    def impostor() -> None: ...

    with pytest.raises(AuthoringError, match=r"test_registry.py:\d+\) has .*/x/shop.py:3\)"):
        event_facet(name="shop.fetch")(impostor)
    with pytest.raises(AuthoringError, match=r"has the same name 'shop.fetch'"):
        event_facet(name="shop.impostor", aliases=["shop.fetch"])(impostor)
    assert own_names() == ["shop.fetch"]


def test_a_notebook_cell_may_be_run_again() -> None:
    _load(1, [], file="/tmp/cell/1.py")
    again = _load(2, [], file="/tmp/cell/2.py")
    assert event_facet_named("shop.fetch") is again
