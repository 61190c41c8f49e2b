"""The server answers every request as its OpenAPI document says, also those that do not fit it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from flowengine.engine import Engine
from flowengine.sdk.wire.openapi import openapi_document
from flowengine.sdk.wire.routes import OPERATIONS
from flowengine.settings import Settings
from tests.integration.engines import one, opened
from tests.integration.wire.clients import Client, Wire
from tests.servers import PostgresServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
NAMES = [operation.name for operation in OPERATIONS]


class Target:
    """A server with one run, one registered agent and one claimed task."""

    def __init__(self, wire: Wire) -> None:
        self.wire, engine = wire, wire.engine
        self.client = wire.client("fuzzer", ["claim", "start", "read", "admin"])
        run = engine.start(one(), "t.Flow", {"x": 1})
        self.client.register()
        (task,) = self.client.claim()
        self.ids = {"run_id": run.id, "server_id": self.client.server_id}
        self.ids |= {"task_id": task["task_id"], "program_hash": task["program"]}
        self.schema = schemathesis.openapi.from_dict(openapi_document())


@pytest.fixture(scope="module")
def target(postgres: PostgresServer, with_schema: str, tmp_path_factory: Any) -> Iterator[Target]:
    """On PostgreSQL: it refuses texts that SQLite takes."""
    url = postgres.new_database(with_schema)
    spool = tmp_path_factory.mktemp("spool")
    limits = Settings(spool_directory=str(spool), max_claim_seconds=0.01)
    with opened(url, settings=limits) as engine, Wire(engine) as wire:
        yield Target(wire)
    postgres.drop_database(url)


def operation_of(target: Target, name: str) -> Any:
    (found,) = [o for o in OPERATIONS if o.name == name]
    return target.schema[found.path][found.method]


def fuzz(target: Target, name: str, examples: int, number: int = 0) -> set[int]:
    """Send requests, some of which fit the document; return the statuses of the answers."""
    seen: set[int] = set()
    # Anew: requests of another operation may have deregistered it.
    target.client.register()
    target.ids["server_id"] = target.client.server_id
    operation = operation_of(target, name)
    headers = {"Authorization": f"Bearer {target.client.token}"}
    modes = list(GenerationMode)
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases, st.booleans())
    def send(case: Any, is_known: bool) -> None:
        if is_known:  # mostly ids that do not exist would be sent
            for key in case.path_parameters or {}:
                case.path_parameters[key] = target.ids[key]
            if isinstance(case.body, dict) and "server_id" in case.body:
                case.body["server_id"] = target.ids["server_id"]
        response = case.call(base_url=target.wire.server.url, headers=headers, timeout=120)
        seen.add(response.status_code)
        # A path may be broken so that it is another one, which the server does not have.
        if response.status_code not in (404, 405) or is_known:
            case.validate_response(response, checks=CHECKS)
        assert response.status_code != 500
        error = response.json().get("error") if response.status_code >= 400 else None
        assert error is None or set(error) == {"code", "message", "hint"}

    send()
    return seen


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_answers_as_its_document_says(target: Target, name: str) -> None:
    fuzz(target, name, 4)


@pytest.mark.chaos
@pytest.mark.parametrize("name", NAMES)
def test_an_operation_answers_many_requests_as_its_document_says(target: Target, name: str) -> None:
    seen = fuzz(target, name, 400, 1)
    if name in ("register_server", "beat_server", "claim_tasks", "read_run", "list_steps"):
        assert 200 in seen


def test_the_document_is_served_without_a_token(engine: Engine, wire: Wire, tmp_path: Path) -> None:
    status, document = Client(wire.server.port, None).ask("GET", "/v1/openapi.json")
    assert (status, document) == (200, openapi_document())
