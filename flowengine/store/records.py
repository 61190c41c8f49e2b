"""Rows of steps and tasks, derived from the evaluator's records.

A column of these tables has the name of the record's field, unless it is renamed here. A field
of a record that has a column in `tables` is inserted and read without further code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter, itemgetter
from typing import Any

from flowengine.evaluator import Step, TaskDefinition, TaskState
from flowengine.store import codec
from flowengine.store.tables import StepRow, TaskRow

Row = tuple[Any, ...]  #: the values of a row, in the order of its columns


def _names(record: Any, unstored: tuple[str, ...] = ()) -> list[str]:
    return [field.name for field in fields(record) if field.name not in unstored]


def _columns(names: list[str], renamed: dict[str, str], table: Any) -> tuple[str, ...]:
    columns = tuple(renamed.get(name, name) for name in names)
    assert set(columns) <= set(table.__table__.c.keys())
    return columns


# --- steps ---

_STEP = _names(Step)
STEP_COLUMNS = _columns(_STEP, {"index": "position"}, StepRow)
STEP_UPDATE_COLUMNS = (
    *("run_id", "id", "params", "state", "returns", "error", "waiting", "remaining"),
    *("item_count", "next_index", "failure", "yields", "updated", "heard", "activation"),
)
_step_values = attrgetter(*_STEP)
_updated_values = itemgetter(*map(STEP_COLUMNS.index, STEP_UPDATE_COLUMNS))
_PARAMS, _RETURNS, _ERROR, _FAILURE, _YIELDS, _HEARD = map(
    STEP_COLUMNS.index, ("params", "returns", "error", "failure", "yields", "heard")
)


def new_step_row(step: Step, encoder: codec.Encoder) -> Row:
    """Encode a step for STEP_COLUMNS."""
    values = _encoded_step(step, encoder)
    values[_PARAMS] = encoder.attributes(step.params)
    return tuple(values)


def updated_step_row(step: Step, encoder: codec.Encoder, *, has_new_params: bool) -> Row:
    """Encode a step for STEP_UPDATE_COLUMNS; without new parameters the stored ones stay.

    Parameters may be large, and hardly ever change.
    """
    values = _encoded_step(step, encoder)
    values[_PARAMS] = (encoder.attributes(step.params) or "{}") if has_new_params else None
    row: Row = _updated_values(values)
    return row


def _encoded_step(step: Step, encoder: codec.Encoder) -> list[Any]:
    values = list(_step_values(step))
    values[_RETURNS] = encoder.attributes(step.returns)
    values[_ERROR] = codec.dump_value(step.error) if step.error else None
    values[_FAILURE] = codec.dump_value(dict(step.failure)) if step.failure else None
    values[_YIELDS] = encoder.yields(step.yields)
    heard = step.heard
    # Most calls are made behind one end: the encoder takes five times as long as the text.
    values[_HEARD] = (f"[{heard[0]}]" if len(heard) == 1 else codec.dump(heard)) if heard else None
    return values


def step_from(row: Sequence[Any]) -> Step:
    """Decode a step from the values of STEP_COLUMNS."""
    values = list(row)
    values[_PARAMS] = codec.attributes(row[_PARAMS])
    values[_RETURNS] = codec.attributes(row[_RETURNS])
    values[_ERROR], values[_FAILURE] = codec.load(row[_ERROR]), codec.load(row[_FAILURE])
    values[_YIELDS] = codec.yields(row[_YIELDS])
    values[_HEARD] = tuple(codec.load(row[_HEARD])) if row[_HEARD] else ()
    return Step(*values)


# --- tasks ---

_UNSTORED = ("data", "join")  # parameters of the step; decided before the insertion
_TASK = _names(TaskDefinition, _UNSTORED)
_RENAMED = {
    "runner_id": "server_id",
    "workflow_id": "run_id",
    "flow_id": "program_hash",
    "circuit": "limit_key",
}
TASK_COLUMNS = _columns(_TASK, _RENAMED, TaskRow)
NEW_TASK_COLUMNS = (*TASK_COLUMNS, "short_name", "started", "activity")
_task_values = attrgetter(*_TASK)
_SERVER, _BOOT, _LIMIT, _TASK_ERROR, _ONCE = map(
    TASK_COLUMNS.index, ("server_id", "boot_id", "limit_key", "error", "runs_once")
)
_DATA, _JOIN = (_names(TaskDefinition).index(name) for name in _UNSTORED)


def new_task_row(task: TaskDefinition) -> Row:
    """Encode a task for NEW_TASK_COLUMNS. One that is running was claimed with its creation."""
    values = list(_task_values(task))
    values[_SERVER], values[_BOOT] = task.runner_id or None, task.boot_id or None
    values[_LIMIT] = limit_key(task.circuit)
    since = task.updated if task.state == TaskState.RUNNING else None
    return (*values, task.name.rpartition(".")[2], since, since)


def task_from(row: Sequence[Any], data: dict[str, Any] | None) -> TaskDefinition:
    """Decode a task from the values of TASK_COLUMNS, which the row begins with."""
    values = list(row[: len(TASK_COLUMNS)])
    values[_SERVER], values[_BOOT] = row[_SERVER] or "", row[_BOOT] or ""
    values[_LIMIT] = circuit_of(row[_LIMIT])
    values[_TASK_ERROR], values[_ONCE] = codec.load(row[_TASK_ERROR]), bool(row[_ONCE])
    values.insert(_DATA, data)
    values.insert(_JOIN, "")
    return TaskDefinition(*values)


CIRCUIT = "circuit:"  #: the beginning of a circuit breaker's key


def limit_key(circuit: str) -> str | None:
    """Return how a task's row names its circuit breaker."""
    return CIRCUIT + circuit if circuit else None


def circuit_of(limit_key: str | None) -> str:
    return limit_key.removeprefix(CIRCUIT) if limit_key else ""
