"""The spool: reports on disk that the database could not accept.

A task that runs when the database becomes unreachable is finished, and its report is written to a
file. Any process of the machine delivers it later. Delivery is idempotent: the lease that a report
names is good for one.
"""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from flowengine.agents import TurnCall
from flowengine.authoring import OnCancel, WorkflowCall
from flowengine.engine import Engine
from flowengine.engine.result_validation import check_result, refused_result
from flowengine.errors import StoreError, UnknownRun, ValueRefused
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.activation_reports import from_json, to_json
from flowengine.evaluator.triggers import (
    ActivationEnded,
    Delegated,
    Failed,
    Lost,
    Outcome,
    Succeeded,
)
from flowengine.private_files import make_private_directory, private_opener
from flowengine.program import parse_program, program_text
from flowengine.store import codec
from flowengine.store.failures import is_unavailable
from flowengine.worker.child_starts import start_child

log = logging.getLogger("flowengine")

SpooledOutcome = Outcome | WorkflowCall | TurnCall

#: Keys of a record, with the attributes of the task they hold.
_TASK_FIELDS = {
    "run_id": "workflow_id",
    "task_id": "uuid",
    "lease": "lease",
    "path": "step_path",
    "name": "name",
    "flow_id": "flow_id",
    "step_id": "step_id",
    "step_key": "step_key",
}


class Spool:
    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._logged: set[str] = set()

    def write(self, record: dict[str, Any]) -> Path:
        """Write a report to disk; it survives a crash when this returns."""
        make_private_directory(self._directory)
        path = self._path(record["task_id"], record["lease"])
        writing = path.with_suffix(f".{os.getpid()}.writing")
        try:
            with open(writing, "w", opener=private_opener) as file:
                file.write(codec.sealed(json.dumps(record)))
                file.flush()
                os.fsync(file.fileno())
            writing.rename(path)
        except OSError:
            writing.unlink(missing_ok=True)
            raise
        return path

    def has(self, task_id: str, lease: int) -> bool:
        return self._path(task_id, lease).exists()

    def _path(self, task_id: str, lease: int) -> Path:
        return self._directory / f"{task_id}-{lease}.json"

    def waiting(self) -> list[Path]:
        return sorted(self._directory.glob("*.json"))

    def deliver(self, engine: Engine) -> int:
        """Report everything spooled; return the number. Raises if the database is unreachable."""
        return sum(self._deliver(path, engine) for path in self.waiting())

    def _deliver(self, path: Path, engine: Engine) -> bool:
        """Deliver one file. A report that cannot be delivered stops none behind it."""
        if not path.is_file():  # another process has delivered it; reading a pipe would block
            return path.exists() and self._log_once(path, "it is not a regular file; remove it")
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        except OSError as problem:
            return self._log_once(path, f"{problem}; give this user the right to read it")
        with file, _lock(file) as is_locked:
            # Its last holder may have delivered and removed it after it was opened here.
            if not is_locked or not path.exists():
                return False
            return self._deliver_content(path, file, engine)

    def _deliver_content(self, path: Path, file: BinaryIO, engine: Engine) -> bool:
        text = ""
        try:
            text = file.read().decode()
            task, outcome = decoded(json.loads(codec.opened(text)))
        except Exception as problem:
            if codec.lacks_key(text):
                return self._log_once(path, problem)
            cure = "it is damaged: its step runs again, and you may remove the file"
            return self._set_aside(path, problem, cure)
        try:
            deliver_report(engine, task, outcome)
        except UnknownRun as problem:
            cure = (
                "if its run is in another database, move it to the spool directory of that one, "
                f"as {path.name}; else remove it"
            )
            return self._set_aside(path, problem, cure)
        except Exception as problem:
            if is_unavailable(problem) and not _is_faulty_alone(problem, engine):
                raise
            return self._log_once(path, problem)
        path.unlink(missing_ok=True)
        return True

    def _set_aside(self, path: Path, problem: Exception, cure: str) -> bool:
        """Rename a file that can never be delivered, for a person to look at."""
        aside = path.with_suffix(".undeliverable")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return False  # another process has renamed it
        except OSError as refused:
            return self._log_once(path, f"{problem}; it cannot be renamed either: {refused}")
        log.error(
            "spooled report %s cannot be delivered: %s: %s; it is kept as %s; %s",
            path,
            type(problem).__name__,
            problem,
            aside,
            cure,
            extra={"action": "report_set_aside"},
        )
        return False

    def _log_once(self, path: Path, problem: Exception | str) -> bool:
        if path.name not in self._logged:
            self._logged.add(path.name)
            log.error(
                "spooled report %s cannot be delivered yet: %s; delivery is repeated",
                path,
                problem,
                exc_info=problem if isinstance(problem, Exception) else None,
                extra={"action": "report_failed"},
            )
        return False


@contextmanager
def _lock(file: BinaryIO) -> Iterator[bool]:
    """Lock a file of the spool; False if another process or thread is delivering it.

    Without the lock two workers that share the directory would deliver a report twice, and the
    second one would warn of a lost lease. The lock ends with the life of its holder.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
        return
    except OSError as problem:  # a file system without locks: the lease refuses the second report
        log.debug("a spooled report cannot be locked: %s", problem)
    try:
        yield True
    finally:
        with suppress(OSError):  # a pool child that was forked meanwhile has the file open, too
            fcntl.flock(file, fcntl.LOCK_UN)


def _is_faulty_alone(problem: Exception, engine: Engine) -> bool:
    """Whether the database answers: then one report is refused, and no outage holds up all."""
    if isinstance(problem, StoreError):
        return False
    try:
        with engine.database.read() as session:
            session.now()
    except Exception:
        return False
    return True


def deliver_report(engine: Engine, task: TaskDefinition, outcome: SpooledOutcome) -> None:
    """Report the end of a try whose report could not be made at once."""
    # Raises UnknownRun for a report to another database. A worker serves all tenants.
    engine.queries.get_of(None, task.workflow_id)
    with engine.failed_evaluations.watch(task.workflow_id):
        if isinstance(outcome, WorkflowCall | TurnCall):
            outcome = start_child(engine, task, outcome)
        storable = engine.storable(task.name, task.flow_id, outcome)
    accepted = engine.end_try(task.workflow_id, task.uuid, task.lease, storable)
    log.info(
        "delivered the spooled report of %s of run %s: %s",
        task.step_path,
        task.workflow_id[:8],
        "accepted" if accepted else "its try had ended before",
        extra={"action": "report_delivered", "run": task.workflow_id},
    )


def spool_record(task: TaskDefinition, outcome: SpooledOutcome) -> dict[str, Any]:
    of_task = {key: getattr(task, name) for key, name in _TASK_FIELDS.items()}
    return {**of_task, "outcome": _encoded(_storable(task.name, outcome))}


def decoded(record: Any) -> tuple[TaskDefinition, SpooledOutcome]:
    """Return the report of a record; raises for a record that no process has written."""
    # Files of earlier versions lack the step's id and key: only a call needs them.
    record = {"step_id": "", "step_key": "", **record}
    of_task: dict[str, Any] = {}
    for key, name in _TASK_FIELDS.items():
        of_task[name] = _expected(record, key, int if key == "lease" else str)
    if not 0 <= of_task["lease"] < 2**31:
        raise ValueError(f"'lease' is {of_task['lease']}, which no database stores")
    if "\0" in "".join(map(str, of_task.values())).encode().decode():  # raises for a surrogate
        raise ValueError("it has a character in it that no database stores")
    return TaskDefinition(runner_id="", **of_task), _outcome(record["outcome"])


def _expected(record: dict[str, Any], key: str, kind: type) -> Any:
    value = record[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key!r} is a {type(value).__name__}, expected a {kind.__name__}")
    return value


def _storable(facet: str, outcome: SpooledOutcome) -> SpooledOutcome:
    """An outcome that JSON has a form for. Its size is checked when it is delivered."""
    try:
        if isinstance(outcome, Succeeded):
            check_result(facet, outcome.result, limit=sys.maxsize)
        elif isinstance(outcome, WorkflowCall):
            check_result(facet, outcome.inputs, limit=sys.maxsize)
    except ValueRefused as problem:
        return refused_result(problem)
    return outcome


def _encoded(outcome: SpooledOutcome) -> dict[str, Any]:
    match outcome:
        case Succeeded(result):
            return {"kind": "succeeded", "result": result}
        case Failed(error, retry):
            return {"kind": "failed", "error": error, "retry": retry}
        case Lost(reason):
            return {"kind": "lost", "reason": reason}
        case ActivationEnded():
            return {"kind": "activated", "report": to_json(outcome)}
        case Delegated(run_id):
            return {"kind": "handed", "run": run_id}
        case WorkflowCall(program, workflow, inputs, waits, on_cancel):
            text = program_text(program) if program else None
            call = {"program": text, "workflow": workflow, "inputs": inputs, "waits": waits}
            return {"kind": "call", **call, "on_cancel": on_cancel}
        case TurnCall():
            return {"kind": "turn", **outcome.to_json()}


def _outcome(encoded: dict[str, Any]) -> SpooledOutcome:
    expected = functools.partial(_expected, encoded)
    match encoded["kind"]:
        case "succeeded":
            return Succeeded(expected("result", dict), is_from_code=True)
        case "failed":
            error = expected("error", dict)
            _expected(error, "type", str)
            _expected(error, "message", str)
            return Failed(error, expected("retry", bool))
        case "handed":
            return Delegated(expected("run", str))
        case "call":
            text = encoded["program"]
            program = parse_program(json.loads(text)) if text else None
            inputs, waits = expected("inputs", dict), expected("waits", bool)
            follows = encoded.get("on_cancel") != "leave"  # files of earlier versions lack it
            on_cancel: OnCancel = "cancel" if follows else "leave"
            return WorkflowCall(program, expected("workflow", str), inputs, waits, on_cancel)
        case "turn":
            for key, kind in (("profile", dict), ("instruction", str), ("agent_id", str)):
                expected(key, kind)
            return TurnCall.from_json(encoded)
        case "activated":
            return from_json(expected("report", dict))
        case "lost":
            return Lost(expected("reason", str))
        case kind:
            raise ValueError(f"'kind' is {kind!r}, which is no outcome of a try")
