"""Yields are laid over results in program order, whatever the order in time was."""

from __future__ import annotations

from typing import Any

from flowengine.evaluator import PayloadRef
from flowengine.evaluator.yields import Merge

LARGE = {"big": [1, 2, 3], "text": "x"}


def read(value: Any) -> Any:
    return LARGE[value.hash] if isinstance(value, PayloadRef) else value


def unread(value: Any) -> Any:
    assert not isinstance(value, PayloadRef), "nobody needed this value"
    return value


def merged(values: dict[str, Any], *layers: dict[str, Any]) -> dict[str, Any]:
    merge = Merge(values, read)
    for layer in layers:
        merge.add(layer)
    return merge.values


def test_the_later_scalar_wins() -> None:
    assert merged({"a": 1}, {"a": 2}, {"a": 3, "b": 1}) == {"a": 3, "b": 1}


def test_null_is_a_value_and_wins_too() -> None:
    assert merged({"a": 1}, {"a": None}) == {"a": None}


def test_list_and_list_are_joined_in_order() -> None:
    assert merged({}, {"a": [1]}, {"a": [2, 3]}, {"a": []}, {"a": [4]}) == {"a": [1, 2, 3, 4]}


def test_a_list_and_something_else_replace_each_other() -> None:
    assert merged({}, {"a": [1]}, {"a": 2}) == {"a": 2}
    assert merged({}, {"a": 2}, {"a": [1]}) == {"a": [1]}


def test_lists_begin_anew_after_something_else() -> None:
    assert merged({}, {"a": [1]}, {"a": [2]}, {"a": 0}, {"a": [3]}, {"a": [4]}) == {"a": [3, 4]}


def test_nothing_that_was_given_is_changed() -> None:
    base, first, second = {"a": [0]}, {"a": [1]}, {"a": [2]}
    assert merged(base, first, second, {"a": [3]}) == {"a": [0, 1, 2, 3]}
    assert (base, first, second) == ({"a": [0]}, {"a": [1]}, {"a": [2]})


def test_a_list_laid_alone_is_not_extended_in_place() -> None:
    alone = [1]
    merge = Merge({}, read)
    merge.add({"a": alone})
    merge.add({"a": [2]})
    assert alone == [1]


def test_a_large_value_that_nothing_is_laid_over_stays_unread() -> None:
    merge = Merge({}, unread)
    merge.add({"a": PayloadRef("big")})
    assert merge.values == {"a": PayloadRef("big")}


def test_large_lists_are_read_to_be_joined() -> None:
    assert merged({"a": [0]}, {"a": PayloadRef("big")}) == {"a": [0, 1, 2, 3]}
    assert LARGE["big"] == [1, 2, 3]


def test_a_large_scalar_that_wins_stays_a_reference() -> None:
    assert merged({"a": 1}, {"a": PayloadRef("text")}) == {"a": PayloadRef("text")}


def test_an_empty_list_is_left_where_nothing_else_is() -> None:
    merge = Merge({"a": [1]}, read)
    merge.set_empty_list("a")
    merge.set_empty_list("b")
    assert merge.values == {"a": [1], "b": []}
