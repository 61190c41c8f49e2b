"""Refusals: every error of the wire protocol, as one table of codes with their statuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flowengine.http import Response, problem

#: The status of each code, and what a client does about it.
CODES: Final[Mapping[str, tuple[int, str]]] = {
    "bad_json": (400, "send one JSON object in UTF-8"),
    "bad_request": (400, "compare the request with /v1/openapi.json"),
    "bad_query": (400, "compare the request with /v1/openapi.json"),
    "no_token": (401, "send the header Authorization: Bearer fe_…"),
    "bad_token": (401, "create a token with `flowengine token create`"),
    "expired_token": (401, "create another token with `flowengine token create`"),
    "revoked_token": (401, "create another token with `flowengine token create`"),
    "missing_scope": (403, "create a token with this scope"),
    "foreign_task_list": (403, "create a token with this task list"),
    "foreign_tenant": (403, "leave the tenant out, or use a token of it"),
    "program_of_tenant": (403, "read the program of a run, or send the program itself"),
    "unknown_run": (404, "it may have been removed by the retention, or be another tenant's"),
    "unknown_program": (404, "read the program of a run: /v1/runs/{run_id}/program"),
    "unknown_task": (404, "claim again"),
    "unknown_server": (404, "register the server: POST /v1/servers"),
    "lease_lost": (409, "drop the result: another try replaces this one, or nobody waits for it"),
    "already_reported": (409, "the first report of a lease counts"),
    "already_running": (409, "see if_running"),
    "too_many_runs": (429, "start it later"),
    "action_refused": (409, "read the run"),
    "server_gone": (410, "register again: POST /v1/servers"),
    "body_too_large": (413, "store the data elsewhere and send its address"),
    "not_json": (415, "send the header Content-Type: application/json"),
    "refused_result": (422, "the step has failed: correct the agent"),
    "refused_value": (422, "correct the value"),
    "refused_program": (422, "correct the program"),
    "refused_inputs": (422, "correct the inputs"),
    "too_many_wrong_tokens": (429, "wait a minute"),
    "too_many_servers": (429, "deregister servers that have ended"),
    "too_many_claims": (429, "let earlier claims of this token end first"),
    "database_unavailable": (503, "send the request again, later each time"),
    "stopping": (503, "send the request again: another server answers, or this one after it"),
}
_RETRY_AFTER = {
    "too_many_wrong_tokens": 60,
    "too_many_claims": 1,
    "too_many_servers": 30,
    "too_many_runs": 1,
    "database_unavailable": 1,
    "stopping": 1,
}


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code, self.message = code, message

    def response(self) -> Response:
        status, hint = CODES[self.code]
        headers: dict[str, str] = {}
        if self.code in _RETRY_AFTER:
            headers["Retry-After"] = str(_RETRY_AFTER[self.code])
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="flowengine"'
        return problem(status, self.code, self.message, hint, headers)
