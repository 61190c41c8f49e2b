"""Somebody who knows Celery writes `.delay()`; the error says what to write instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Task

from flowengine.authoring import event_facet, facet, workflow
from flowengine.errors import AuthoringError, NotACeleryTask
from tests.registries import empty_registry

NAMES = [
    *("delay", "apply_async", "apply", "s", "si", "signature", "subtask"),
    *("map", "starmap", "chunks", "retry", "replace", "AsyncResult"),
]


@pytest.fixture
def decorated() -> Iterator[dict[str, Any]]:
    def fn(title: str) -> str:
        return title

    with empty_registry():
        album = workflow(name="music.album")(fn)
        yield {
            "album": album,
            "album.options": album.options(key="k"),
            "play": event_facet(name="music.play")(fn),
            "tune": facet(name="music.tune")(fn),
        }


@pytest.mark.parametrize("name", NAMES)
def test_a_method_of_a_task_is_refused_with_its_replacement(
    name: str, decorated: dict[str, Any]
) -> None:
    assert hasattr(Task, name), "it is Celery's"
    for key, value in decorated.items():
        with pytest.raises(NotACeleryTask) as refused:
            getattr(value, name)
        text = str(refused.value)
        qualified = f"'music.{key.partition('.')[0]}'"
        assert qualified in text, "which one"
        assert "test_celery_names.py:" in text, "where it is defined"
        assert f"is not a Celery task and has no {name!r}: " in text
        assert "{" not in text.replace("{...}", ""), "every field is filled in"
        assert isinstance(refused.value, AuthoringError)
        assert str(pickle.loads(pickle.dumps(refused.value))) == text
        assert not hasattr(value, name), "nobody takes it for a task"


@pytest.mark.parametrize(
    ("key", "name", "cure"),
    [
        ("album", "delay", "write album.start(...)"),
        ("album", "apply_async", "album.options(key=..., priority=...).start(...)"),
        ("album", "s", 'args=("music.album", {...}), queue="flowengine")'),
        ("album", "chunks", "album.start_many([{...}, ...])"),
        ("album.options", "delay", "write album.start(...)"),
        ("play", "delay", 'app.send_task("music.play", args=[...])'),
        ("play", "apply_async", "a countdown is play.after(sleep(seconds))(...)"),
        ("album", "apply_async", "a countdown or eta is a sleep(...) or sleep_until(...)"),
        ("play", "map", "foreach(items, play)"),
        ("tune", "delay", "call it like a function in a @workflow"),
    ],
)
def test_the_replacement_can_be_written_as_it_is(
    key: str, name: str, cure: str, decorated: dict[str, Any]
) -> None:
    with pytest.raises(AttributeError) as refused:
        getattr(decorated[key], name)
    assert cure in str(refused.value)


def test_an_attribute_that_celery_has_not_either_is_an_ordinary_error(
    decorated: dict[str, Any],
) -> None:
    with pytest.raises(AttributeError) as refused:
        decorated["album"].dealy  # noqa: B018
    assert not isinstance(refused.value, NotACeleryTask)


def test_an_attribute_of_the_function_itself_is_kept() -> None:
    def fn() -> None: ...

    fn.retry = "mine"  # type: ignore[attr-defined]
    with empty_registry():
        assert workflow(name="music.mine")(fn).retry == "mine"  # type: ignore[attr-defined]


def test_a_facet_can_still_be_copied(decorated: dict[str, Any]) -> None:
    assert copy.copy(decorated["play"]).name == "music.play"
    assert decorated["play"].named("other").step_name == "other"
