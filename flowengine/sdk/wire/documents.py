"""The documents of the wire protocol: requests and responses, as models.

The OpenAPI document is generated from them; a request that does not fit is refused with the name of
the field.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from flowengine.sdk.wire.refusals import Refused

#: Text that every database takes and every log shows: without control characters.
Text = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")
]
FacetName = Annotated[
    str,
    StringConstraints(
        max_length=255, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
    ),
]
Id = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Lease = Annotated[int, Field(ge=1, le=2**31 - 1, description="raised by every claim")]
Milliseconds = Annotated[int, Field(description="since the epoch")]
JsonMap = dict[str, Any]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


# --- errors ---


class ErrorDetail(_Document):
    code: str
    message: str
    hint: str


class ErrorDocument(_Document):
    error: ErrorDetail


# --- servers ---


class Registration(_Document):
    """A server: a process that claims tasks."""

    handlers: list[FacetName] = Field(
        min_length=1, max_length=500, description="facets that it has code for; qualified or short"
    )
    task_lists: list[Name] = Field(default=["default"], min_length=1, max_length=100)
    service_name: Name = "wire-agent"
    server_group: Name = "default"
    server_name: Text = Field(default="", description="for people; by default its address")


class Registered(_Document):
    server_id: Id
    heartbeat_interval_ms: int = Field(description="between two heartbeats, at most")
    server_timeout_ms: int = Field(description="without a heartbeat: then its tasks run elsewhere")
    max_claimed_tasks: int
    max_claim_seconds: float
    max_request_bytes: int


class Held(_Document):
    task_id: Id
    lease: Lease


class Heartbeat(_Document):
    held: list[Held] | None = Field(
        default=None,
        max_length=10_000,
        description="all tasks that the server works on: others that it has claimed are released",
    )


class HeartbeatAnswer(_Document):
    state: Literal["running"] = "running"
    lost: list[Held] = Field(description="tasks whose results are not wanted any more")
    released: list[Held] = Field(description="claimed tasks that it did not know of")


class Deregistered(_Document):
    state: Literal["shutdown"] = "shutdown"


# --- tasks ---


class ClaimRequest(_Document):
    server_id: Id
    task_list: Name = "default"
    facets: list[FacetName] | None = Field(
        default=None, max_length=500, description="by default the handlers of the server"
    )
    most: int = Field(default=1, ge=1, le=10_000)
    wait_seconds: float = Field(default=0.0, ge=0.0, le=3_600.0)
    request_id: Name | None = Field(
        default=None, description="a repeated request returns the tasks of the first"
    )


class Task(_Document):
    task_id: Id
    lease: Lease
    facet: str
    arguments: JsonMap
    run_id: Id
    step_id: Id = Field(description="the same for every try: an idempotency key for services")
    path: str
    program: str = Field(description="the hash of the run's program")
    task_list: str
    tenant: str
    try_number: int
    losses: int
    timeout_ms: int | None = Field(description="without a heartbeat of the task it fails then")


class Claimed(_Document):
    tasks: list[Task]


class Continue(_Document):
    lease: Lease
    result: JsonMap = Field(description="the results of the facet, by name")


class AgentError(_Document):
    type: Annotated[str, StringConstraints(min_length=1, max_length=255)] = "AgentError"
    message: str = ""
    traceback: str = ""


class Fail(_Document):
    lease: Lease
    error: AgentError
    retryable: bool = Field(
        default=True, description="false: the step fails, whatever its retry policy allows"
    )
    retry_after_seconds: float | None = Field(default=None, ge=0.0, le=31_536_000.0)


class Release(_Document):
    lease: Lease


class TaskBeat(_Document):
    lease: Lease
    progress: Any = Field(default=None, description="a small value that readers of the run see")


class Reported(_Document):
    task_id: Id
    state: Literal["completed", "failed"]
    duplicate: bool = Field(description="this lease had reported it before")


class Released(_Document):
    task_id: Id
    released: bool


class Wanted(_Document):
    wanted: bool = Field(description="false: the lease is lost; stop, the result will be refused")


# --- runs ---


class StartRequest(_Document):
    workflow: Name
    inputs: JsonMap = {}
    program: JsonMap | None = Field(default=None, description="as JSON")
    afl: str | None = Field(default=None, description="as AFL text")
    program_hash: Id | None = Field(default=None, description="of a program that is stored")
    key: Name | None = Field(
        default=None, description="idempotency key: a second start returns the first run"
    )
    if_failed: Literal["return", "start", "raise"] = "return"
    priority: int = Field(default=0, ge=-1_000_000, le=1_000_000)
    labels: dict[str, str] = {}
    tenant: Annotated[str, StringConstraints(max_length=64)] | None = None
    deadline_seconds: float | None = Field(default=None, gt=0, le=3_153_600_000.0)
    singleton: Name | None = None
    if_running: Literal["reject", "return", "replace", "queue"] = "reject"


class Started(_Document):
    run_id: Id


class Wait(_Document):
    kind: str
    subject: str
    since: Milliseconds
    until: Milliseconds | None


class RunDocument(_Document):
    run_id: Id
    workflow: str
    state: str
    outputs: JsonMap | None
    error: JsonMap | None
    alarm: str | None
    key: str | None
    priority: int
    labels: dict[str, str]
    tenant: str
    created: Milliseconds
    updated: Milliseconds
    finished: Milliseconds | None
    waits_for: Wait | None


class StepDocument(_Document):
    step_id: Id
    path: str
    kind: str
    facet: str
    state: str
    arguments: JsonMap
    result: JsonMap
    error: JsonMap | None
    tries: int
    losses: int
    task_state: str | None
    progress: Any
    created: Milliseconds
    updated: Milliseconds
    waits_for: Wait | None


class StepsDocument(_Document):
    steps: list[StepDocument]
    next: str | None = Field(description="`after` of the next page; null: this is the last")


class ProgramDocument(_Document):
    program_hash: Id
    program: JsonMap


class Answer(_Document):
    name: Name
    value: Any = None


class Answered(_Document):
    taken: bool = Field(description="false: it is kept until a step waits for it")


class Cancel(_Document):
    reason: Annotated[str, StringConstraints(max_length=1_000)] = ""


class Done(_Document):
    done: Literal[True] = True


# --- reading requests ---

D = TypeVar("D", bound=_Document)


def read_document(body: bytes, model: type[D], max_depth: int) -> D:
    """Return the document of a body. Raises Refused, with the place of the problem."""
    document = _read_json(body, max_depth)
    try:
        return model.model_validate(document)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise Refused("bad_request", f"{place}: {first['msg']}") from None


def _read_json(body: bytes, max_depth: int) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise Refused("bad_json", f"the body is not UTF-8: byte {problem.start}") from None
    try:
        document = json.loads(text or "{}", parse_constant=_no_number, parse_float=_number)
    except RecursionError:
        raise Refused("bad_json", "the body is nested too deeply") from None
    except ValueError as problem:
        raise Refused("bad_json", f"the body is not JSON: {problem}") from None
    if _is_deeper(document, max_depth):
        raise Refused("bad_json", f"the body is nested deeper than {max_depth} lists and maps")
    if _has_surrogates(text):
        raise Refused("bad_json", "the body has half of a surrogate pair, which is no character")
    return document


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is larger than a number can be")
    return number


def _is_deeper(document: Any, most: int) -> bool:
    level = [document]
    for _ in range(most + 1):
        level = [
            inner
            for part in level
            if isinstance(part, dict | list)
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
        if not level:
            return False
    return True


def _has_surrogates(text: str) -> bool:
    if "\\u" not in text:
        return False
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
