"""The form of a document: the keys of a workflow and of its tasks, with their types.

The JSON Schema for editors is made of these models, and documents are validated by them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from flowengine.program.option_checks import LONGEST_SECONDS, MAX_COUNT
from flowengine.program.run_limits import MOST
from flowengine.retention import EXPECTED_AGE, age_of


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=False)


def _seconds(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = age_of(value) / 1000
        except ValueError:
            raise ValueError(f"expected {EXPECTED_AGE}") from None
        except OverflowError:
            value = math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected {EXPECTED_AGE}, or a number of seconds")
    if value > LONGEST_SECONDS:
        raise ValueError("expected a century at most (36500d)")
    return float(value)


def _short(key: str, *kinds: type) -> Any:
    """Accept a plain value for a map with that one key."""
    return lambda value: {key: value} if type(value) in kinds else value


Duration = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=str | float)]
#: Values may have expressions in them: ``${inputs.day}``.
Value = Any
Names = Annotated[
    list[str],
    BeforeValidator(
        lambda value: [value] if isinstance(value, str) else value,
        json_schema_input_type=str | list[str],
    ),
]


class Input(_Strict):
    type: Literal["text", "integer", "number", "boolean", "date", "list", "map", "any"] = "any"
    default: Value = Field(None, description="A constant, or a value of the tick: ${tick.date}.")
    description: str | None = None


class ScheduleModel(_Strict):
    cron: str | None = Field(None, description="Five fields, six with seconds first, or @daily.")
    every: str | float | None = Field(None, description="An interval: 15m")
    timezone: str = "UTC"
    inputs: dict[str, Value] = Field(default_factory=dict)
    overlap: Literal["allow", "skip", "queue", "replace"] = "allow"
    catch_up: Literal["none", "last", "all"] = "none"
    jitter: str | float = 0
    start: str | None = None
    end: str | None = None
    name: str = ""


class Concurrency(_Strict):
    runs: int | None = Field(None, ge=1, le=MOST, description="Open runs; others wait.")
    tasks: int | None = Field(None, ge=1, le=MAX_COUNT, description="Tries of one run at a time.")


class Retry(_Strict):
    attempts: int = Field(1, ge=1, le=MAX_COUNT, description="Tries in total.")
    first_wait: Duration = Field(1.0, ge=0)
    factor: float = Field(2.0, ge=0, le=MAX_COUNT)
    max_wait: Duration = Field(300.0, ge=0)
    jitter: float = Field(0.0, ge=0, le=1)
    on: Names = Field(default_factory=list, description="Errors that are tried again; none: all.")
    never_on: Names = Field(default_factory=list)


class Wait(_Strict):
    time: Value = Field(None, description="How long: 10m, or an expression in seconds.")
    until: Value = Field(None, description="A time: 2026-11-15T06:00:00Z")
    answer: str | None = Field(None, description="The name of an answer from outside.")
    timeout: Duration | None = Field(None, gt=0, description="The longest wait for the answer.")


class Uv(_Strict):
    script: str
    args: list[Value] = Field(default_factory=list)
    packages: list[str] = Field(default_factory=list)
    project: bool = Field(False, description="The script belongs to a project of uv.")
    directory: str | None = None
    uv: str = Field("uv", description="The program.")


class Task(_Strict):
    name: str | None = None
    description: str | None = None
    call: str | None = Field(None, description="The qualified name of an event facet.")
    workflow: str | None = Field(None, description="The name of a workflow, run as a child.")
    wait: (
        Annotated[
            Wait,
            BeforeValidator(
                _short("time", str, int, float), json_schema_input_type=str | float | Wait
            ),
        ]
        | None
    ) = None
    run: list[Value] | None = Field(None, min_length=1, description="A program and its arguments.")
    sh: str | None = Field(None, description="A text for the shell, with values in `env`.")
    uv: Uv | None = None
    env: dict[str, Value] = Field(default_factory=dict, description="Variables of a command.")
    directory: str | None = Field(None, description="In which `run` and `sh` run.")
    with_: dict[str, Value] = Field(default_factory=dict, alias="with")
    stdin: Value = None
    depends: Names = Field(default_factory=list, description="Tasks that must end first.")
    on: Literal["completed", "ended"] = "completed"
    retry: (
        Annotated[
            Retry,
            BeforeValidator(_short("attempts", int), json_schema_input_type=int | Retry),
        ]
        | None
    ) = None
    timeout: Duration | None = Field(None, gt=0, description="Of each try.")
    deadline: Duration | None = Field(None, gt=0, description="Of all tries together.")


_OneSchedule = Annotated[
    ScheduleModel,
    BeforeValidator(_short("cron", str), json_schema_input_type=str | ScheduleModel),
]


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


class Document(_Strict):
    """A workflow of flowengine, as a document."""

    name: str | None = Field(None, description="A title; the name is that of the file.")
    description: str | None = None
    schedule: Annotated[
        list[_OneSchedule],
        BeforeValidator(
            _listed, json_schema_input_type=str | ScheduleModel | list[str | ScheduleModel]
        ),
    ] = Field(default_factory=list)
    inputs: dict[
        str,
        Annotated[Input, BeforeValidator(_short("type", str), json_schema_input_type=str | Input)],
    ] = Field(default_factory=dict)
    concurrency: Concurrency | None = None
    deadline: Duration | None = Field(None, gt=0, description="Of a run.")
    tasks: dict[str, Task] = Field(min_length=1)
    result: Value = None


def document_schema() -> dict[str, Any]:
    """Return the JSON Schema of documents, for editors."""
    schema = Document.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
