"""Clients of the wire protocol, each with a token; every answer is checked against OpenAPI."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any, Self

import jsonschema

from flowengine.engine import Engine
from flowengine.sdk.wire.openapi import openapi_document
from flowengine.sdk.wire.server import WireServer
from tests.integration.sdk.pollers import WAIT

DOCUMENT = openapi_document()
FACET, LIST = "t.Work", "default"


class Wire:
    """A server on a free port."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.server = WireServer(engine, port=0)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    def client(self, name: str, scopes: list[str], **options: Any) -> Client:
        token, _ = self.engine.tokens.create(name, scopes, **options)
        return Client(self.server.port, token)


class Client:
    def __init__(self, port: int, token: str | None) -> None:
        self.port, self.token = port, token
        self.server_id = ""

    def ask(self, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        """Send a request, and return the status and the document of the answer."""
        body = None if document is None else json.dumps(document).encode()
        return self.send(method, path, body)

    def send(
        self, method: str, path: str, body: bytes | None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token is not None else {}
        if body is not None:
            headers["Content-Type"] = kind
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        check_answer(method, path, response.status, answer)
        return response.status, answer

    def post(self, path: str, **document: Any) -> Any:
        """Send a document; the answer must be a success."""
        status, answer = self.ask("POST", path, document)
        assert status == 200, answer
        return answer

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    # --- an agent ---

    def register(self, *handlers: str, **options: Any) -> str:
        handlers = handlers or (FACET,)
        answer = self.post("/v1/servers", handlers=list(handlers), **options)
        self.server_id = answer["server_id"]
        return self.server_id

    def claim(self, **options: Any) -> list[dict[str, Any]]:
        answer = self.post("/v1/tasks/claim", server_id=self.server_id, **options)
        tasks: list[dict[str, Any]] = answer["tasks"]
        return tasks

    def report(self, task: dict[str, Any], verb: str, **document: Any) -> tuple[int, Any]:
        path = f"/v1/tasks/{task['task_id']}/{verb}"
        return self.ask("POST", path, {"lease": task["lease"], **document})

    def refused(self, method: str, path: str, document: Any = None) -> tuple[int, str]:
        """Send a request; return the status and the code of its error."""
        status, answer = self.ask(method, path, document)
        assert status >= 400, answer
        return status, answer["error"]["code"]


def check_answer(method: str, path: str, status: int, answer: Any) -> None:
    """Compare an answer with the OpenAPI document."""
    path = path.partition("?")[0]
    for template, methods in DOCUMENT["paths"].items():
        pattern = re.sub(r"\{\w+\}", "[^/]+", template)
        if re.fullmatch(pattern, path) and method.lower() in methods:
            responses = methods[method.lower()]["responses"]
            assert str(status) in responses, (method, path, status, answer)
            schema = responses[str(status)]["content"]["application/json"]["schema"]
            jsonschema.validate(answer, {**schema, "components": DOCUMENT["components"]})
            return
