"""The table of routes decides without a server."""

from __future__ import annotations

import json

import pytest

from flowengine.http import Request, Response, Route, RouteTable, problem


def handler(request: Request) -> Response:
    return Response()


TABLE = RouteTable(
    [
        Route("GET", "/v1/runs/{run_id}", handler),
        Route("GET", "/v1/runs/newest", handler),
        Route("POST", "/v1/runs", handler),
        Route("POST", "/v1/tasks/{task_id}/{verb}", handler),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v1/runs/abc", {"run_id": "abc"}),
        ("HEAD", "/v1/runs/abc", {"run_id": "abc"}),
        ("GET", "/v1/runs/newest", {}),
        ("GET", "/v1/runs/%C3%A4%2Fb", {"run_id": "ä/b"}),
        ("POST", "/v1/tasks/7/fail", {"task_id": "7", "verb": "fail"}),
    ],
)
def test_a_path_is_matched_by_its_segments(
    method: str, path: str, expected: dict[str, str]
) -> None:
    found = TABLE.find(method, path)
    assert not isinstance(found, Response)
    assert found[1] == expected


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_path"),
        ("GET", "/v1/runs/", 404, "unknown_path"),
        ("GET", "/v1/runs/a/b", 404, "unknown_path"),
        ("GET", "/v1/runs/%ff", 400, "bad_path"),
        ("DELETE", "/v1/runs/a", 405, "method_not_allowed"),
    ],
)
def test_a_path_without_a_route_is_an_error_of_one_shape(
    method: str, path: str, status: int, code: str
) -> None:
    found = TABLE.find(method, path)
    assert isinstance(found, Response)
    assert (found.status, json.loads(found.body)["error"]["code"]) == (status, code)


def test_the_methods_of_a_path_are_named() -> None:
    found = TABLE.find("PUT", "/v1/runs/a")
    assert isinstance(found, Response)
    assert found.headers == {"Allow": "GET, HEAD"}


def test_two_handlers_of_one_route_are_refused() -> None:
    with pytest.raises(ValueError, match="two routes of GET /a"):
        RouteTable([Route("GET", "/a", handler), Route("GET", "/a", handler)])


def test_a_document_is_valid_utf_8_whatever_texts_it_has() -> None:
    content = {"a": "ä😀", "b": "\ud800"}
    assert json.loads(Response.of_json(content).body.decode()) == content


def test_an_error_has_a_code_a_message_and_a_hint() -> None:
    made = problem(409, "lease_lost", "too late", "claim again")
    error = {"code": "lease_lost", "message": "too late", "hint": "claim again"}
    assert json.loads(made.body) == {"error": error}
