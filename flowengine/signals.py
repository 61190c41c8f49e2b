"""Outcomes of runs and steps as Celery signals.

    from flowengine.signals import run_failed

    @run_failed.connect
    def tell(sender, run_id, outcome, delivery, **_):
        ...

`sender` is the name of the workflow, `outcome` has path and error, `delivery` all outcomes of the
commit. Set FLOWENGINE_OUTCOME_SIGNALS=on for all processes, and connect receivers in the modules
that workers import. A signal is sent at least once, in order for each run, by the process that
delivers; if a receiver raises an exception, all receivers are called again later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.utils.dispatch import Signal

if TYPE_CHECKING:
    from flowengine.engine.hooks import Delivery

_ARGUMENTS = {"run_id", "outcome", "delivery"}

run_completed = Signal(name="run_completed", providing_args=_ARGUMENTS)
run_failed = Signal(name="run_failed", providing_args=_ARGUMENTS)
run_cancelled = Signal(name="run_cancelled", providing_args=_ARGUMENTS)
step_failed = Signal(name="step_failed", providing_args=_ARGUMENTS)
#: Sent only if the setting `hook_events` names it.
step_completed = Signal(name="step_completed", providing_args=_ARGUMENTS)
#: An alarm of a run has begun: `outcome.error["message"]` has its text.
run_alarm = Signal(name="run_alarm", providing_args=_ARGUMENTS)
#: A schedule has stopped: `outcome.path` is its name, and `run_id` is empty.
schedule_stopped = Signal(name="schedule_stopped", providing_args=_ARGUMENTS)

_SIGNALS = {
    signal.name: signal
    for signal in (
        *(run_completed, run_failed, run_cancelled, step_failed, step_completed),
        *(run_alarm, schedule_stopped),
    )
}


def send_signals(delivery: Delivery) -> None:
    """Send the signals of a delivery; raise the first exception of a receiver."""
    problems = []
    for outcome in delivery.outcomes:
        answers = _SIGNALS[outcome.event].send(
            sender=delivery.workflow, run_id=delivery.run_id, outcome=outcome, delivery=delivery
        )
        problems += [answer for _, answer in answers if isinstance(answer, Exception)]
    if problems:
        raise problems[0]
