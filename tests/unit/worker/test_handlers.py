"""The names of facets that a worker has code for."""

from __future__ import annotations

from flowengine.worker.handlers import NameSet


def test_a_set_of_names_is_made_once_for_a_list() -> None:
    names, made = ["a", "b"], NameSet()
    assert made.of(names) is made.of(names)
    assert made.of(["a", "c"]) == {"a", "c"}
