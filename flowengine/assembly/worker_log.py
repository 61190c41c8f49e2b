"""The log of a Celery worker: records of a step name it, and wake-ups are not logged at INFO."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from celery import signals
from celery.utils.log import get_logger

from flowengine.errors import InvalidSetting
from flowengine.log_context import JsonFormatter, StepFilter
from flowengine.settings import Settings
from flowengine.tasks.celery_tasks import WAKEUPS

#: Celery's loggers for messages that are received, that were handled, and that the beat sends.
_OF_MESSAGES = ("celery.worker.strategy", "celery.app.trace", "celery.beat")
_FORMATS = ("text", "json", "celery")
_step_filter = StepFilter()


class _NoWakeups(logging.Filter):
    """Drops Celery's lines about wake-ups at INFO: two for each, beside those of the steps."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.INFO or not record.args:
            return True
        args = record.args
        name = args.get("name") if isinstance(args, Mapping) else args[-1]  # of beat's lines
        is_wakeup = isinstance(name, str) and name in WAKEUPS
        return not is_wakeup or logging.root.isEnabledFor(logging.DEBUG)


_no_wakeups = _NoWakeups()


def show_steps_in_log(settings: Settings) -> None:
    """Have a worker of this process log so; called before Celery configures its log."""
    if settings.log_format not in _FORMATS:
        expected = "text, json or celery"
        raise InvalidSetting("FLOWENGINE_LOG_FORMAT", settings.log_format, expected)

    def adapt(logger: logging.Logger, **_: Any) -> None:
        for handler in logger.handlers:
            handler.addFilter(_step_filter)
            if settings.log_format == "json":
                handler.setFormatter(JsonFormatter())
            elif settings.log_format == "text" and handler.formatter is not None:
                _append_step(handler.formatter)

    for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
        signal.disconnect(dispatch_uid="flowengine.log")  # of an app that was configured before
        signal.connect(adapt, weak=False, dispatch_uid="flowengine.log")
    for name in _OF_MESSAGES:
        logger = get_logger(name)
        logger.removeFilter(_no_wakeups)
        if not settings.log_wakeups:
            logger.addFilter(_no_wakeups)


def _append_step(formatter: logging.Formatter) -> None:
    """Put the step behind the message of Celery's format, unless the format has it."""
    style = formatter._style
    if "%(step)s" not in style._fmt:
        style._fmt = style._fmt.replace("%(message)s", "%(message)s%(step)s")
        formatter._fmt = style._fmt
