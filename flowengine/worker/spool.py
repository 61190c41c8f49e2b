"""Reports that wait on disk while the database cannot be reached.

What was running when the database went away is finished, and its report is written to a
file before anything else is done. It is delivered when the database is back, also by
another process after this one was restarted. Delivering twice is harmless: the lease that
a report names is good for one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowengine.engine import Engine, result_validation
from flowengine.errors import UnknownRun, ValueRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed, HandedOver, Lost, Outcome, Succeeded
from flowengine.store.outages import is_away

log = logging.getLogger("flowengine")


class Spool:
    """A directory of reports."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._complained: set[str] = set()

    def keep(self, task: TaskDefinition, outcome: Outcome) -> Path:
        """Write a report to disk; it is there, also after a crash, when this returns."""
        kept = {
            "run_id": task.workflow_id,
            "task_id": task.uuid,
            "lease": task.lease,
            "path": task.step_path,
            "name": task.name,
            "flow_id": task.flow_id,
            "outcome": _written(_storable(task.name, outcome)),
        }
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._path(task.uuid, task.lease)
        writing = path.with_suffix(f".{os.getpid()}.writing")
        with writing.open("w") as file:
            json.dump(kept, file)
            file.flush()
            os.fsync(file.fileno())
        writing.rename(path)
        return path

    def has(self, task_id: str, lease: int) -> bool:
        """Whether the report of a try waits here."""
        return self._path(task_id, lease).exists()

    def _path(self, task_id: str, lease: int) -> Path:
        return self._directory / f"{task_id}-{lease}.json"

    def waiting(self) -> Iterator[Path]:
        if self._directory.is_dir():
            yield from sorted(self._directory.glob("*.json"))

    def deliver(self, engine: Engine) -> int:
        """Report what waits; return how many were delivered. Raises when the database is away."""
        return sum(self._deliver(path, engine) for path in self.waiting())

    def _deliver(self, path: Path, engine: Engine) -> bool:
        """Report what waits in a file. One that cannot be reported stops none behind it."""
        try:
            kept = json.loads(path.read_text())
            found = _read(kept["outcome"])
            tried = kept["run_id"], kept["task_id"], kept["lease"]
            facet = kept["name"], kept["flow_id"]
        except FileNotFoundError:
            return False  # another process was quicker
        except OSError as problem:
            return self._complain(path, problem)
        except (ValueError, KeyError, TypeError) as problem:
            return self._set_aside(path, problem)
        try:
            engine.get(kept["run_id"])  # it may be a report for another database
            accepted = engine.end_try(*tried, engine.storable(*facet, found))
        except UnknownRun as problem:
            return self._set_aside(path, problem)
        except Exception as problem:
            if is_away(problem):
                raise
            return self._complain(path, problem)
        path.unlink(missing_ok=True)
        log.info(
            "delivered the report of %s that waited on disk: %s",
            kept["path"],
            "accepted" if accepted else "refused, the lease was lost",
            extra={"action": "report_delivered", "run": kept["run_id"]},
        )
        return True

    def _set_aside(self, path: Path, problem: Exception) -> bool:
        """Keep a file for somebody to look at."""
        with suppress(FileNotFoundError):  # another process was quicker
            path.rename(path.with_suffix(".undeliverable"))
        log.error("%s cannot be delivered: %s", path, problem)
        return False

    def _complain(self, path: Path, problem: Exception) -> bool:
        """Tell once of a report that cannot be taken in; it is tried again."""
        if path.name not in self._complained:
            self._complained.add(path.name)
            about = {"action": "report_failed"}
            log.error(
                "%s cannot be delivered yet: %s", path, problem, exc_info=problem, extra=about
            )
        return False


def _storable(facet: str, outcome: Outcome) -> Outcome:
    if isinstance(outcome, Succeeded):
        try:
            result_validation.check(
                facet, outcome.result, limit=sys.maxsize
            )  # that is known elsewhere
        except ValueRefused as problem:
            return result_validation.refused(problem)
    return outcome


def _written(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Succeeded(result):
            return {"kind": "succeeded", "result": result}
        case Failed(error, retry):
            return {"kind": "failed", "error": error, "retry": retry}
        case Lost(reason):
            return {"kind": "lost", "reason": reason}
        case HandedOver(run_id):
            return {"kind": "handed", "run": run_id}


def _read(written: dict[str, Any]) -> Outcome:
    match written["kind"]:
        case "succeeded":
            return Succeeded(written["result"])
        case "failed":
            return Failed(written["error"], written["retry"])
        case "handed":
            return HandedOver(written["run"])
        case _:
            return Lost(written["reason"])
