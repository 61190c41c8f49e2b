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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowengine.engine import Engine
from flowengine.errors import UnknownRun
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.happenings import Failed, HandedOver, Lost, Succeeded, TryOutcome

log = logging.getLogger("flowengine")


class Spool:
    """A directory of reports."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def keep(self, task: TaskDefinition, outcome: TryOutcome | HandedOver) -> Path:
        """Write a report to disk; it is there, also after a crash, when this returns."""
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{task.uuid}-{task.lease}.json"
        writing = path.with_suffix(f".{os.getpid()}.writing")
        with writing.open("w") as file:
            json.dump(
                {
                    "run_id": task.workflow_id,
                    "task_id": task.uuid,
                    "lease": task.lease,
                    "path": task.step_path,
                    "outcome": _written(outcome),
                },
                file,
            )
            file.flush()
            os.fsync(file.fileno())
        writing.rename(path)
        return path

    def waiting(self) -> Iterator[Path]:
        if self._directory.is_dir():
            yield from sorted(self._directory.glob("*.json"))

    def deliver(self, engine: Engine) -> int:
        """Report what waits; return how many were delivered. Raises when the database is away."""
        delivered = 0
        for path in self.waiting():
            try:
                kept = json.loads(path.read_text())
                outcome = _read(kept["outcome"])
                accepted = engine.end_try(kept["run_id"], kept["task_id"], kept["lease"], outcome)
            except FileNotFoundError:
                continue  # another process was quicker
            except (ValueError, KeyError, UnknownRun) as problem:
                # It must not stop those behind it, and is kept for somebody to look at.
                path.rename(path.with_suffix(".undeliverable"))
                log.error("%s cannot be delivered: %s", path, problem)
                continue
            path.unlink(missing_ok=True)
            delivered += 1
            log.info(
                "delivered the report of %s that waited on disk: %s",
                kept["path"],
                "accepted" if accepted else "refused, the lease was lost",
                extra={"action": "report_delivered", "run": kept["run_id"]},
            )
        return delivered


def _written(outcome: TryOutcome | HandedOver) -> dict[str, Any]:
    match outcome:
        case Succeeded(result):
            return {"kind": "succeeded", "result": result}
        case Failed(error, retry):
            return {"kind": "failed", "error": error, "retry": retry}
        case Lost(reason):
            return {"kind": "lost", "reason": reason}
        case HandedOver(run_id):
            return {"kind": "handed", "run": run_id}


def _read(written: dict[str, Any]) -> TryOutcome | HandedOver:
    match written["kind"]:
        case "succeeded":
            return Succeeded(written["result"])
        case "failed":
            return Failed(written["error"], written["retry"])
        case "handed":
            return HandedOver(written["run"])
        case _:
            return Lost(written["reason"])
