"""The routes of the wire protocol: one table for the server and the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from flowengine.access_tokens import Scope
from flowengine.sdk.wire import documents

OPENAPI_PATH = "/v1/openapi.json"
#: Of every operation.
COMMON = (
    *("no_token", "bad_token", "expired_token", "revoked_token", "missing_scope"),
    *("too_many_wrong_tokens", "database_unavailable", "stopping"),
)
#: Of every operation with a document.
OF_BODIES = ("bad_json", "bad_request", "not_json", "body_too_large")


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    name: str  #: of the function of `Operations`
    summary: str
    scopes: tuple[Scope, ...]  #: one of which a token needs
    answer: type[BaseModel]
    document: type[BaseModel] | None = None
    refusals: tuple[str, ...] = ()
    query: tuple[tuple[str, str], ...] = ()  #: names and descriptions of whole numbers


_CLAIM, _START, _READ, _ADMIN = (Scope.CLAIM,), (Scope.START,), (Scope.READ,), (Scope.ADMIN,)
_OF_SERVER = ("unknown_server", "server_gone")
_OF_TASK = ("unknown_task", "foreign_tenant")
_OF_REPORT = (*_OF_TASK, "lease_lost", "already_reported")

OPERATIONS = (
    Operation(
        *("POST", "/v1/servers", "register_server", "Register a server"),
        _CLAIM,
        documents.Registered,
        documents.Registration,
        ("foreign_task_list", "too_many_servers"),
    ),
    Operation(
        *("POST", "/v1/servers/{server_id}/heartbeat", "beat_server"),
        "Send a sign of life of a server, and compare the tasks that it works on",
        _CLAIM,
        documents.HeartbeatAnswer,
        documents.Heartbeat,
        _OF_SERVER,
    ),
    Operation(
        *("DELETE", "/v1/servers/{server_id}", "deregister_server"),
        "Deregister a server; its tasks are released",
        _CLAIM,
        documents.Deregistered,
        None,
        ("unknown_server",),
    ),
    Operation(
        *("POST", "/v1/tasks/claim", "claim_tasks", "Claim tasks, and wait for them"),
        _CLAIM,
        documents.Claimed,
        documents.ClaimRequest,
        (*_OF_SERVER, "foreign_task_list", "foreign_tenant", "too_many_claims"),
    ),
    Operation(
        *("POST", "/v1/tasks/{task_id}/continue", "continue_task"),
        "Report the result of a task: its step completes, and the run goes on",
        _CLAIM,
        documents.Reported,
        documents.Continue,
        (*_OF_REPORT, "refused_result"),
    ),
    Operation(
        *("POST", "/v1/tasks/{task_id}/fail", "fail_task", "Report the error of a task"),
        _CLAIM,
        documents.Reported,
        documents.Fail,
        _OF_REPORT,
    ),
    Operation(
        *("POST", "/v1/tasks/{task_id}/release", "release_task"),
        "Give a task back that has not begun",
        _CLAIM,
        documents.Released,
        documents.Release,
        _OF_TASK,
    ),
    Operation(
        *("POST", "/v1/tasks/{task_id}/heartbeat", "beat_task"),
        "Restart the timeout of a task, and learn whether its result is wanted",
        _CLAIM,
        documents.Wanted,
        documents.TaskBeat,
        (*_OF_TASK, "refused_value"),
    ),
    Operation(
        *("GET", "/v1/programs/{program_hash}", "read_program", "Read a program by its hash"),
        (Scope.READ, Scope.CLAIM),
        documents.ProgramDocument,
        None,
        ("unknown_program", "program_of_tenant"),
    ),
    Operation(
        *("POST", "/v1/runs", "start_run", "Start a run; with a key, once"),
        _START,
        documents.Started,
        documents.StartRequest,
        (
            *("foreign_tenant", "program_of_tenant", "unknown_program", "refused_program"),
            *("refused_inputs", "refused_value", "already_running", "too_many_runs"),
            "action_refused",
        ),
    ),
    Operation(
        *("GET", "/v1/runs/{run_id}", "read_run", "Read the state of a run, and its outputs"),
        (Scope.READ, Scope.START),
        documents.RunDocument,
        None,
        ("unknown_run", "foreign_tenant"),
    ),
    Operation(
        *("GET", "/v1/runs/{run_id}/steps", "list_steps", "Read the steps of a run"),
        _READ,
        documents.StepsDocument,
        None,
        ("unknown_run", "foreign_tenant", "bad_query"),
        (("after", "the `next` of the page before"), ("limit", "steps of a page")),
    ),
    Operation(
        *("GET", "/v1/runs/{run_id}/program", "read_run_program", "Read the program of a run"),
        (Scope.READ, Scope.CLAIM),
        documents.ProgramDocument,
        None,
        ("unknown_run", "unknown_program", "foreign_tenant"),
    ),
    Operation(
        *("POST", "/v1/runs/{run_id}/send", "answer_run", "Answer a step that waits"),
        _ADMIN,
        documents.Answered,
        documents.Answer,
        ("unknown_run", "foreign_tenant", "action_refused", "refused_value"),
    ),
    Operation(
        *("POST", "/v1/runs/{run_id}/cancel", "cancel_run", "Cancel a run"),
        _ADMIN,
        documents.Done,
        documents.Cancel,
        ("unknown_run", "foreign_tenant", "action_refused", "refused_value"),
    ),
)


def codes_of(operation: Operation) -> list[str]:
    """Return the codes of all errors that an operation may answer with."""
    of_body = OF_BODIES if operation.document is not None else ()
    return [*COMMON, *of_body, *operation.refusals]
