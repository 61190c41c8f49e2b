"""Records of a step carry its run, path and try."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import logging.config
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from celery import Celery, signals
from celery.app.log import TaskFormatter
from celery.utils.log import ColorFormatter

from flowengine import event_facet, foreach, workflow
from flowengine.assembly.celery_patches import patch_celery
from flowengine.assembly.worker_log import show_steps_in_log
from flowengine.errors import InvalidSetting
from flowengine.log_context import JsonFormatter, StepFilter, TextFormatter
from flowengine.settings import Settings
from flowengine.tasks.celery_tasks import EXECUTE, WAKEUPS
from flowengine.testing import Flow

log = logging.getLogger("shop.orders")


@event_facet(name="logs.pack")
def pack(order: str) -> str:
    log.warning("packing %s", order, extra={"shelf": 3})
    return order


@event_facet(name="logs.send")
async def send(order: str) -> str:
    async def speak() -> None:
        await asyncio.to_thread(log.warning, "sending %s", order)

    await asyncio.gather(speak())
    return order


@workflow(name="logs.orders")
def orders(names: list[str]) -> list[str]:
    return foreach(names, lambda name: send(pack(name)))


@contextmanager
def logged(formatter: logging.Formatter) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(StepFilter())
    handler.setFormatter(formatter)
    log.addHandler(handler)
    try:
        yield stream
    finally:
        log.removeHandler(handler)


def run_orders() -> str:
    with Flow() as flow:
        run = flow.start(orders, ["a"])
        flow.settle()
        assert run.result(timeout=0) == ["a"]
    log.warning("outside")
    return run.id


def test_text_has_the_step_behind_the_message() -> None:
    with logged(TextFormatter("%(levelname)s %(message)s%(step)s")) as stream:
        run = run_orders()[:8]
    assert stream.getvalue().splitlines() == [
        f"WARNING packing a [run {run} orders.foreach[0].pack try 1]",
        f"WARNING sending a [run {run} orders.foreach[0].send try 1]",
        "WARNING outside",
    ]


def test_a_json_line_has_the_step_and_everything_given_as_extra() -> None:
    with logged(JsonFormatter()) as stream:
        run = run_orders()
        try:
            raise ValueError("no\npaper")
        except ValueError:
            log.exception("failed", extra={"odd": {1, 2}.__class__, "run": "mine"})
    first, second, third, last = map(json.loads, stream.getvalue().splitlines())
    step = {"run": run, "path": "orders.foreach[0].pack", "facet": "logs.pack", "try": 1}
    assert first.items() >= {**step, "shelf": 3, "level": "WARNING", "logger": log.name}.items()
    assert second["path"] == "orders.foreach[0].send"
    assert third["message"] == "outside"
    assert not third.keys() & step.keys()
    assert "ValueError: no\npaper" in last["exception"]
    assert last["run"] == "mine"


def test_the_configuration_of_the_documents_is_accepted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"step": {"()": "flowengine.log_context.StepFilter"}},
        "formatters": {"text": {"()": "flowengine.log_context.TextFormatter"}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "filters": ["step"], "formatter": "text"}
        },
        "loggers": {log.name: {"handlers": ["console"]}},
    }
    logging.config.dictConfig(config)
    try:
        run = run_orders()[:8]
    finally:
        log.handlers.clear()
    assert f"packing a [run {run} orders.foreach[0].pack try 1]\n" in capsys.readouterr().err


# --- the log of a Celery worker ---


@contextmanager
def worker_log(settings: Settings, formatter: logging.Formatter) -> Iterator[io.StringIO]:
    """A handler as Celery makes it, after Celery's signal."""
    show_steps_in_log(settings)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log.addHandler(handler)
    try:
        for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
            signal.send(sender=None, logger=log)
        yield stream
    finally:
        log.removeHandler(handler)
        show_steps_in_log(Settings())


@pytest.mark.parametrize("kind", [ColorFormatter, TaskFormatter])
def test_a_worker_shows_the_step_in_the_format_of_celery(kind: type[ColorFormatter]) -> None:
    celerys = kind("[%(levelname)s] %(message)s", use_color=False)
    with worker_log(Settings(), celerys) as stream:
        run = run_orders()[:8]
    assert f"[WARNING] packing a [run {run} orders.foreach[0].pack try 1]\n" in stream.getvalue()
    assert stream.getvalue().endswith("[WARNING] outside\n")


def test_a_worker_writes_json_or_leaves_the_format_alone() -> None:
    celerys = ColorFormatter("%(message)s", use_color=False)
    with worker_log(Settings(log_format="json"), celerys) as stream:
        run = run_orders()
    assert json.loads(stream.getvalue().splitlines()[0])["run"] == run
    with worker_log(Settings(log_format="celery"), celerys) as stream:
        run_orders()
    assert stream.getvalue() == "packing a\nsending a\noutside\n"
    with pytest.raises(InvalidSetting, match=r"FLOWENGINE_LOG_FORMAT='xml' is not text, json or"):
        show_steps_in_log(Settings(log_format="xml"))


@pytest.mark.parametrize(
    "logger_name", ["celery.worker.strategy", "celery.app.trace", "celery.beat"]
)
def test_wakeups_are_not_logged_at_info(logger_name: str, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(logger_name)
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.INFO, logger_name)
    try:
        for wakeups in (False, True):
            caplog.clear()
            show_steps_in_log(Settings(log_wakeups=wakeups))
            for name in (*WAKEUPS, EXECUTE, "shop.mail"):
                logger.info("Task %(name)s received", {"name": name})
            logger.info("Scheduler: Sending due task %s (%s)", "tick", min(WAKEUPS))
            logger.error("Task %(name)s failed", {"name": min(WAKEUPS)})
            shown = 3 + (len(WAKEUPS) + 1 if wakeups else 0)
            assert len([r for r in caplog.records if r.name == logger_name]) == shown
    finally:
        show_steps_in_log(Settings())


def test_flower_is_sent_no_event_of_a_wakeup() -> None:
    patch_celery()
    app = Celery("sent", broker="memory://", set_as_current=False)

    def event(name: str) -> object:
        return app.amqp.as_task_v2("an-id", name, (), {}, create_sent_event=True).sent_event

    assert [name for name in WAKEUPS if event(name)] == []
    assert event("shop.mail")
    assert event(EXECUTE)
