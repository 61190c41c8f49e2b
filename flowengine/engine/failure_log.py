"""The log lines of failures: one ERROR for a run that has failed, and failed tries.

The process that commits an end writes its line, after the commit: once, however often the commit
was tried. A try whose code has raised an exception is logged where that happens, with the exception
(`worker/try_errors`); the others are logged here: a try that was lost or timed out, one that was
reported from outside, and a durable function that has ended with an error.

Logs have no values of runs. Messages that the engine composes of values are reduced to names; with
a payload codec that encrypts, no message of an error is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from flowengine.authoring import event_facet_named
from flowengine.errors.programs import message_without_values
from flowengine.evaluator import RunView
from flowengine.evaluator.call_statements import call_path
from flowengine.evaluator.records import Step
from flowengine.evaluator.states import RunState
from flowengine.evaluator.triggers import ActivationEnded, Failed, Lost, RanAhead, Report
from flowengine.log_filter import REMOTE_TRACEBACK
from flowengine.secret_keys import without_secrets
from flowengine.settings import Settings

log = logging.getLogger("flowengine")

_COMPRESSING = "flowengine.payload_codecs:ZlibCodec"
_IN_SHOW = "(`flowengine show` prints its message)"
_HANDLING = " (while handling "  #: in a message: the cause follows, which is logged by itself


class FailedRun(NamedTuple):
    """The end of a run, as a commit has written it."""

    run_id: str
    workflow: str
    error: Mapping[str, Any]
    generation: int
    is_call: bool  #: of an agent, which gets the error


class FailedTry(NamedTuple):
    """The end of a try that no worker has logged."""

    run_id: str
    path: str
    facet: str
    number: int
    end: Failed | Lost


def failed_run(view: RunView) -> FailedRun | None:
    """Return the end of a run if it has failed."""
    if view.state != RunState.FAILED:
        return None
    about = (view.generation, view.agent_call is not None)
    return FailedRun(view.id, view.workflow, view.error or {}, *about)


def failed_tries(reports: Iterable[Report]) -> list[FailedTry]:
    """Return the failed tries among these, without those that a worker has logged."""
    found = []
    for report in reports:
        task, outcome = report.task, report.outcome
        run_id, path = task.workflow_id, task.step_path
        if isinstance(outcome, ActivationEnded):
            if outcome.failed is not None and not has_traceback(outcome.failed.error):
                call = outcome.calls[0]
                name = call_path(path, call)
                found.append(FailedTry(run_id, name, call.facet, 1, outcome.failed))
            if (ended := _raised(outcome)) is not None:
                found.append(FailedTry(run_id, path, task.name, task.try_number, ended))
        elif isinstance(outcome, Lost) or (
            isinstance(outcome, Failed) and not has_traceback(outcome.error)
        ):
            found.append(FailedTry(run_id, path, task.name, task.try_number, outcome))
    return found


def failed_ahead(run_id: str, function: Step, ahead: RanAhead) -> list[FailedTry]:
    """Return the end of a function that ran ahead, if it has raised an exception."""
    ended = _raised(ahead.report)
    if ended is None:
        return []
    return [FailedTry(run_id, function.path, function.facet_name, ahead.number, ended)]


def _raised(report: ActivationEnded) -> Failed | None:
    """Return the exception of a function's code; the error of a call is logged with the call."""
    ended = report.ended
    return ended if isinstance(ended, Failed) and has_traceback(ended.error) else None


def has_traceback(error: Mapping[str, Any]) -> bool:
    return bool(error.get("traceback"))


def level_of(facet: str, problem: BaseException | None = None) -> int:
    """Return the level at which failed tries of a facet are logged; a warning without its code."""
    code = event_facet_named(facet)
    if code is None:
        return logging.WARNING
    is_expected = isinstance(problem, code.expected)
    return min(code.failure_level, logging.INFO) if is_expected else code.failure_level


class FailureLog:
    def __init__(self, settings: Settings) -> None:
        #: Whether messages of errors are stored encrypted.
        self.is_sealed = settings.payload_codec not in ("", _COMPRESSING)

    def message(self, error: Mapping[str, Any]) -> str:
        """Return the message of a stored error as it is logged; empty: it is left out."""
        if self.is_sealed:
            return ""
        text = str(without_secrets(error.get("message", ""))).partition(_HANDLING)[0]
        return message_without_values(str(error.get("type")), text)

    def described(self, error: Mapping[str, Any]) -> str:
        """Return the type and the message of a stored error as they are logged."""
        kind, text = error.get("type", "Error"), self.message(error)
        shown = f"{kind}: {text}" if text else str(kind)
        return f"{shown} {_IN_SHOW}" if self._is_cut(error) else shown

    def _is_cut(self, error: Mapping[str, Any]) -> bool:
        return self.message(error) != str(error.get("message", "")).partition(_HANDLING)[0]

    def traceback(self, error: Mapping[str, Any]) -> str:
        """Return a stored traceback as it is logged: its last line is the message."""
        return self.places(error) if self._is_cut(error) else str(error["traceback"]).rstrip()

    def places(self, error: Mapping[str, Any]) -> str:
        """Return the places of a stored traceback, without code and messages."""
        lines = str(error.get("traceback") or "").splitlines()
        found = [line for line in lines if line.startswith('  File "')]
        return "\n".join(["Traceback (most recent call last):", *found]) if found else ""

    def run_failed(self, run: FailedRun) -> None:
        """Log the end of a run as one line."""
        error, cause = run.error, run.error.get("cause")
        path = error.get("path") or run.workflow
        about = {
            "action": "run_failed",
            "run": run.run_id,
            "workflow": run.workflow,
            "path": path,
            "error_type": error.get("type"),
        }
        text = self.described(error)
        if error.get("run"):
            text = f"{text}, in child run {error['run']}"
        if cause:
            about["cause"] = f"{self.described(cause)}, in {cause.get('path')}"
            text = f"{text}; it was handling {about['cause']}"
        log.log(
            logging.INFO if run.is_call else logging.ERROR,
            "run %s of %s failed%s in %s: %s",
            run.run_id,
            run.workflow,
            f" again, in generation {run.generation}," if run.generation else "",
            path,
            text,
            extra=about,
        )

    def try_failed(self, one: FailedTry) -> None:
        about: dict[str, Any] = {
            "action": "try_failed",
            "run": one.run_id,
            "path": one.path,
            "facet": one.facet,
            "try_number": one.number,
        }
        if isinstance(one.end, Lost):
            how = f"was lost: {one.end.reason}"
        else:
            how = f"failed: {self.described(one.end.error)}"
            if has_traceback(one.end.error):
                about[REMOTE_TRACEBACK] = self.traceback(one.end.error)
        log.log(
            level_of(one.facet),
            "%s %s (try %d of run %s%s)",
            one.path,
            how,
            one.number,
            one.run_id,
            "" if REMOTE_TRACEBACK in about else ", no traceback",
            extra=about,
        )
