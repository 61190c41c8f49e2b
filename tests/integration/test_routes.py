"""The routes and queues of a Celery app are the task lists of its facets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from flowengine.assembly import FlowEngine
from flowengine.assembly.worker_queues import WorkerQueues
from flowengine.authoring import (
    event_facet,
    set_launcher_source,
    set_task_list_source,
    workflow,
)
from flowengine.errors import AuthoringError
from flowengine.program import link_program
from tests.registries import empty_registry


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app with flowengine, for facets of the test."""
    launcher, lists = set_launcher_source(None), set_task_list_source(None)
    app = Celery("routed", broker="memory://", set_as_current=False)
    with empty_registry():
        FlowEngine(app)
        yield app
    set_launcher_source(launcher)
    set_task_list_source(lists)


def task(app: Celery, name: str, **options: Any) -> Any:
    @app.task(name=name, shared=False, **options)
    def charge(cents: int) -> int:
        return cents

    return charge


def fn(n: int) -> int:
    return n


ROUTES: list[Any] = [
    {"shop.charge": "payments"},
    {"shop.charge": {"queue": "payments", "priority": 3}},
    {"shop.*": {"queue": "payments"}},
    [{"other.*": "elsewhere"}, {"*.charge": {"queue": Queue("payments")}}],
    lambda name, args, kwargs, options, task=None, **_: {"queue": "payments"},
]


@pytest.mark.parametrize("routes", ROUTES, ids=range(len(ROUTES)))
def test_a_routed_task_needs_no_task_list(app: Celery, routes: Any) -> None:
    borrowed = event_facet(task(app, "shop.charge"))
    own = event_facet(name="shop.own.charge")(fn)
    app.conf.task_routes = routes  # after the facets, as in a project that is configured late
    assert borrowed.options.task_list == "payments"
    if not isinstance(routes, dict) or "shop.charge" not in routes:
        assert own.options.task_list == "payments"

    @workflow(name="shop.order")
    def order(cents: int) -> int:
        return borrowed(cents)

    facets = link_program(order.program()).facets
    assert facets["shop.charge"].options.task_list == "payments"


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_the_queue_of_the_task_precedes_its_route_and_an_option_both(app: Celery) -> None:
    app.conf.task_routes = {"shop.*": "routed"}
    charge = task(app, "shop.charge", queue="till")
    assert event_facet(charge).options.task_list == "till"
    other = event_facet(task_list="mine")(task(app, "shop.other"))
    assert other.options.task_list == "mine"
    assert event_facet(name="shop.named", task_list="mine")(fn).options.task_list == "mine"


def test_the_default_queue_of_the_app_is_the_list_of_all_others(app: Celery) -> None:
    borrowed = event_facet(task(app, "shop.charge"))
    own = event_facet(name="shop.own")(fn)
    assert borrowed.options.task_list == "celery", "where .delay() sends it"
    assert own.options.task_list == "default"
    app.conf.task_default_queue = "counter"
    assert borrowed.options.task_list == own.options.task_list == "counter"


def test_without_an_app_a_facet_has_the_default_list() -> None:
    with empty_registry():
        before = set_task_list_source(None)
        assert event_facet(name="shop.own")(fn).options.task_list == "default"
        set_task_list_source(before)


def test_a_route_that_fails_names_the_facet_and_the_cure(app: Celery) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise KeyError("region")

    own = event_facet(name="shop.own")(fn)
    app.conf.task_routes = fails
    with pytest.raises(AuthoringError, match=r"'shop\.own' .*KeyError: 'region'.*task_list="):
        own.options  # noqa: B018


def test_a_route_to_a_queue_that_is_not_declared_is_an_error(app: Celery) -> None:
    app.conf.task_routes = {"shop.own": "undeclared"}
    app.conf.task_create_missing_queues = False
    with pytest.raises(AuthoringError, match="undeclared"):
        event_facet(name="shop.own")(fn).options  # noqa: B018


def test_a_worker_consumes_routed_lists_and_keeps_the_arguments_of_declared_queues(
    app: Celery,
) -> None:
    declared = Queue("payments", queue_arguments={"x-max-priority": 5})
    app.conf.task_queues = [declared, Queue("celery")]
    app.conf.task_routes = {"shop.charge": "payments"}
    event_facet(task(app, "shop.charge"))
    event_facet(name="shop.own", task_list="io")(fn)
    queues = WorkerQueues(app)
    queues.choose({}, "flowengine")
    # "default" has the tasks of runs from before the route.
    assert set(queues.consumed()) >= {"payments", "io", "flowengine", "default"}
    kept = app.amqp.queues["payments"].queue_arguments
    assert kept == {"x-max-priority": 5}
    assert queues.consumes("payments")


def test_a_worker_with_named_queues_consumes_no_others(app: Celery) -> None:
    event_facet(name="shop.own", task_list="io")(fn)
    queues = WorkerQueues(app)
    queues.choose({"queues": "gpu", "exclude_queues": "flowengine"}, "flowengine")
    assert "io" not in queues.consumed()
    assert queues.excluded == {"flowengine"}


def test_child_runs_follow_the_default_queue_of_the_app(app: Celery) -> None:
    app.conf.task_default_queue = "counter"

    @workflow(name="shop.below")
    def below(n: int) -> int:
        return n

    @workflow(name="shop.above")
    def above(n: int) -> int:
        return below.start(n).result()

    plan = link_program(above.program())
    assert plan.facets["flowengine.child"].node.options.task_list == "counter"
    queues = WorkerQueues(app)
    queues.choose({}, "flowengine")
    assert "counter" in queues.consumed()


def test_child_runs_are_on_the_default_list_without_a_default_queue(app: Celery) -> None:
    @workflow(name="shop.below")
    def below(n: int) -> int:
        return n

    @workflow(name="shop.above")
    def above(n: int) -> int:
        return below.start(n).result()

    plan = link_program(above.program())
    assert plan.facets["flowengine.child"].node.options.task_list == "default"
