"""Options of a start are refused by type, with all problems in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from flowengine import InvalidInputs, event_facet, workflow
from flowengine.errors import StoreError, TooLarge
from flowengine.store import Database
from flowengine.testing import Flow


@event_facet
def doubled(self: int) -> int:
    return self * 2


@workflow
def double(self: int, cls: int = 1) -> int:
    return doubled(self)


@workflow
def twice(workflow: int, func: int, args: int) -> int:
    return doubled(self=workflow)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": 5}, "the key must be text, not 5 (int)"),
        ({"key": b"x"}, "the key must be text, not b'x' (bytes)"),
        ({"key": "half \ud800"}, "no lone surrogate"),
        ({"priority": "high"}, "the priority must be a whole number, not 'high' (str)"),
        ({"priority": 1.5}, "the priority must be a whole number, not 1.5 (float)"),
        ({"priority": True}, "the priority must be a whole number, not True (bool)"),
        ({"labels": ["a"]}, "the labels must be a map of text to text, not ['a'] (list)"),
        ({"labels": "ab"}, "the labels must be a map of text to text, not 'ab' (str)"),
        ({"labels": {"a": 1}}, "the labels must be a map of text to text; 'a' (str) has 1 (int)"),
        ({"labels": {1: "a"}}, "the labels must be a map of text to text; 1 (int) has 'a' (str)"),
    ],
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any], says: str) -> None:
    with Flow() as flow:
        with pytest.raises(InvalidInputs) as refused:
            double.options(**options).start(1)
        assert says in str(refused.value)
        with pytest.raises(InvalidInputs) as refused:
            flow.engine.start(double.program(), double.name, {"self": 1}, **options)
        assert says in str(refused.value)
        assert flow.engine.list() == []


def test_all_problems_of_a_start_are_named_at_once() -> None:
    with Flow() as flow, pytest.raises(InvalidInputs) as refused:
        flow.engine.start(
            double.program(), double.name, {"self": 1}, key=5, priority="x", labels=[1], tenant=7
        )
    for option in ("key", "priority", "labels", "tenant"):
        assert f"the {option} must" in str(refused.value)


def test_inputs_that_are_no_map_are_refused() -> None:
    with Flow() as flow, pytest.raises(InvalidInputs, match="the inputs must be a map"):
        flow.engine.start(double.program(), double.name, ["self"])  # type: ignore[arg-type]


def test_labels_have_the_limit_of_a_value() -> None:
    with Flow() as flow, pytest.raises(TooLarge, match="the labels of"):
        double.options(labels={"a": "x" * flow.engine.settings.max_value_bytes}).start(1)


def test_a_parameter_may_have_the_name_self() -> None:
    with Flow() as flow:
        run = double.start(self=3)
        flow.settle()
        assert run.result(timeout=0) == 6
        assert flow.run(double, self=4, cls=2) == 8
        assert flow.run(twice, workflow=5, func=1, args=2) == 10
        (many,) = double.start_many([{"self": 6}])
        flow.settle()
        assert many.result(timeout=0) == 12
    assert double(self=7) == doubled(self=7) == 14


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "postgresql://joe:geheim@host:port/db", "://", "postgresql//joe:geheim@h"],
)
def test_a_malformed_url_is_one_sentence_without_its_password(url: str) -> None:
    with pytest.raises(StoreError, match="is not the URL of a database") as refused:
        Database(url)
    assert "geheim" not in str(refused.value)


def test_a_url_that_begins_with_postgres_is_told_the_right_name() -> None:
    with pytest.raises(StoreError) as refused:
        Database("postgres://joe:geheim@host:5432/db")
    assert str(refused.value) == (
        "flowengine stores runs in sqlite or postgresql, not in 'postgres': write postgresql://, "
        "as in FLOWENGINE_DATABASE_URL=postgresql://joe:***@host:5432/db"
    )


@pytest.mark.parametrize(
    "scheme", ["postgres+psycopg2", "postgresql+psycopg2", "postgresql+pg8000"]
)
def test_a_url_with_another_driver_is_told_the_right_name(scheme: str) -> None:
    # As of an app that uses SQLAlchemy: the extra does not install its driver.
    with pytest.raises(StoreError) as refused:
        Database(f"{scheme}://joe:geheim@host:5432/db")
    assert str(refused.value).endswith(
        "write postgresql://, as in FLOWENGINE_DATABASE_URL=postgresql://joe:***@host:5432/db"
    )


def test_a_password_in_the_query_of_a_url_is_masked() -> None:
    database = Database(
        "postgresql+psycopg://joe:geheim@host/db?sslpassword=geheim&sslmode=require"
    )
    assert database.name == ("postgresql+psycopg://joe:***@host/db?sslmode=require&sslpassword=***")
    database.close()
