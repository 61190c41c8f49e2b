"""Tokens: wrong, expired, revoked, of other task lists and other tenants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowengine.access_tokens import AccessToken, digest_of
from flowengine.engine import Engine
from flowengine.errors import TenantRefused, TokenRefused
from flowengine.sdk.wire import servers
from flowengine.sdk.wire.access import CACHED_SECONDS, Access
from flowengine.sdk.wire.refusals import Refused
from flowengine.settings import Settings
from flowengine.store.tables import metadata
from tests.integration.engines import MovedClock, one, opened
from tests.integration.wire.clients import Client, Wire
from tests.integration.wire.test_tasks import start


class Seconds:
    """The clock of a process, moved by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture
def dated(clock: MovedClock, url: str) -> Iterator[Engine]:
    with opened(url, clock=clock) as engine:
        yield engine


def refusal(access: Access, token: str, address: str = "1.2.3.4") -> str:
    with pytest.raises(Refused) as refused:
        access.caller(f"Bearer {token}", address)
    return refused.value.code


# --- the token itself ---


def test_the_database_has_the_digest_of_a_token_alone(engine: Engine) -> None:
    secret, token = engine.tokens.create("ci", ["start"])
    assert secret.startswith("fe_")
    assert len(secret) >= 46
    assert token.digest == digest_of(secret)
    with engine.database.read() as session:
        rows: Any = session.connection.execute(metadata.tables["flowengine_token"].select()).all()  # type: ignore[attr-defined]
    assert secret not in str(rows)
    assert secret[3:] not in str(rows)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("", {}, "a name is printable text"),
        ("a:b", {}, "without a colon"),
        ("x" * 101, {}, "100 characters at most"),
        ("a\n", {}, "printable"),
        (
            "a",
            {"scopes": ["root"]},
            "there is no scope 'root'; there are claim, start, read, admin",
        ),
        ("a", {"scopes": []}, "it needs a scope"),
        ("a", {"task_lists": [""]}, "each with a name"),
        ("a", {"tenant": "x" * 65}, "its tenant must be"),
        ("a", {"seconds": -1}, "expired already"),
    ],
)
def test_a_token_that_could_not_work_is_refused(
    dated: Engine, name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TokenRefused, match=reason):
        dated.tokens.create(name, **{"scopes": ["claim"], **options})
    assert dated.tokens.list() == []


def test_a_name_is_used_once_and_a_missing_one_cannot_be_revoked(dated: Engine) -> None:
    dated.tokens.create("ci", ["claim"])
    with pytest.raises(TokenRefused, match="there is a token of this name"):
        dated.tokens.create("ci", ["claim"])
    with pytest.raises(TokenRefused, match="there is no token of this name"):
        dated.tokens.revoke("other")


def test_the_tokens_of_a_bound_app_are_its_tenants(tmp_path: Path, dated: Engine) -> None:
    dated.tokens.create("all", ["read"])
    with opened(f"sqlite:///{tmp_path}/flow.db", settings=Settings(tenant="acme")) as bound:
        assert bound.tokens.create("own", ["read"])[1].tenant == "acme"
        assert [token.name for token in bound.tokens.list()] == ["own"]
        with pytest.raises(TenantRefused):
            bound.tokens.create("foreign", ["read"], tenant="other")
        with pytest.raises(TokenRefused, match="there is no token"):
            bound.tokens.revoke("all")


# --- requests ---


@pytest.mark.parametrize(
    ("token", "code"),
    [(None, "no_token"), ("", "bad_token"), ("fe_wrong", "bad_token"), ("x" * 9000, "bad_token")],
)
def test_a_request_without_a_valid_token_is_refused(
    wire: Wire, token: str | None, code: str
) -> None:
    client = Client(wire.server.port, token)
    for method, path in (("POST", "/v1/servers"), ("GET", f"/v1/runs/{'0' * 32}")):
        document = {"handlers": ["a"]} if method == "POST" else None
        assert client.refused(method, path, document) == (401, code)


def test_an_expired_token_is_refused_at_that_moment(dated: Engine, clock: MovedClock) -> None:
    ticks = Seconds()
    access = Access(dated.database, "", 20, ticks)
    secret, _ = dated.tokens.create("short", ["read"], seconds=1)
    assert access.caller(f"Bearer {secret}", "").token.name == "short"
    ticks.now += 1.0  # less than it is cached for
    clock.now += 1000
    assert access.cached(f"Bearer {secret}") is None
    assert refusal(access, secret) == "expired_token"


def test_a_revoked_token_is_refused_when_its_cached_row_is_old(dated: Engine) -> None:
    ticks = Seconds()
    access = Access(dated.database, "", 20, ticks)
    secret, _ = dated.tokens.create("ci", ["read"])
    access.caller(f"Bearer {secret}", "")
    dated.tokens.revoke("ci")
    dated.tokens.revoke("ci")
    ticks.now += CACHED_SECONDS
    assert refusal(access, secret) == "revoked_token"
    assert CACHED_SECONDS <= 5


def test_an_address_with_many_wrong_tokens_is_refused_for_a_minute(dated: Engine) -> None:
    ticks = Seconds()
    access = Access(dated.database, "", 3, ticks)
    secret, _ = dated.tokens.create("ci", ["read"])
    assert [refusal(access, f"fe_{n}") for n in range(4)] == [
        *3 * ["bad_token"],
        "too_many_wrong_tokens",
    ]
    assert refusal(access, secret) == "too_many_wrong_tokens"  # a guess would not be told apart
    access.caller(f"Bearer {secret}", "5.6.7.8")
    for _ in range(3):  # a known client is not shut out, as behind a proxy
        access.caller(f"Bearer {secret}", "1.2.3.4")
        ticks.now += CACHED_SECONDS
    assert refusal(access, "fe_9") == "too_many_wrong_tokens"
    ticks.now += 61
    assert refusal(access, "fe_9") == "bad_token"


def test_every_operation_needs_its_scope(wire: Wire) -> None:
    nothing = "0" * 32
    reader, claimer = wire.client("reader", ["read"]), wire.client("claimer", ["claim"])
    claim = {"server_id": nothing}
    assert reader.refused("POST", "/v1/tasks/claim", claim) == (403, "missing_scope")
    assert reader.refused("POST", "/v1/servers", {"handlers": ["a"]}) == (403, "missing_scope")
    assert reader.refused("POST", f"/v1/runs/{nothing}/cancel", {}) == (403, "missing_scope")
    start = {"workflow": "a", "afl": ""}
    assert claimer.refused("POST", "/v1/runs", start) == (403, "missing_scope")
    assert claimer.refused("GET", f"/v1/runs/{nothing}") == (403, "missing_scope")


def test_a_token_claims_from_its_task_lists_alone(engine: Engine, wire: Wire) -> None:
    gpu = wire.client("gpu", ["claim"], task_lists=["gpu"])
    refused = (403, "foreign_task_list")
    assert gpu.refused("POST", "/v1/servers", {"handlers": ["t.Work"]}) == refused
    start(engine)
    gpu.register(task_lists=["gpu"])
    claim = {"server_id": gpu.server_id, "task_list": "default"}
    assert gpu.refused("POST", "/v1/tasks/claim", claim) == refused
    assert gpu.claim(task_list="gpu") == []


def test_a_token_of_a_tenant_sees_no_other_tenants_work(engine: Engine, wire: Wire) -> None:
    scopes = ["claim", "start", "read", "admin"]
    acme = wire.client("acme", scopes, tenant="acme")
    foreign, own = start(engine, 1, tenant="other"), start(engine, 2, tenant="acme")
    acme.register()
    assert [task["run_id"] for task in acme.claim(most=5)] == [own.id]
    assert acme.claim() == []
    for path in ("", "/steps", "/program"):
        assert acme.refused("GET", f"/v1/runs/{foreign.id}{path}") == (404, "unknown_run")
        assert acme.ask("GET", f"/v1/runs/{own.id}{path}")[0] == 200
    assert acme.refused("POST", f"/v1/runs/{foreign.id}/cancel", {}) == (404, "unknown_run")
    answer = {"name": "a", "value": 1}
    assert acme.refused("POST", f"/v1/runs/{foreign.id}/send", answer) == (404, "unknown_run")
    program = acme.get(f"/v1/runs/{own.id}/program")
    digest = program["program_hash"]
    assert acme.refused("GET", f"/v1/programs/{digest}") == (403, "program_of_tenant")
    wanted = {"workflow": "t.Flow", "inputs": {"x": 3}}
    by_hash = {**wanted, "program_hash": digest}
    assert acme.refused("POST", "/v1/runs", by_hash) == (403, "program_of_tenant")
    stated = {**wanted, "program": program["program"]}
    assert acme.refused("POST", "/v1/runs", {**stated, "tenant": "other"}) == (
        403,
        "foreign_tenant",
    )
    begun = acme.post("/v1/runs", **stated)["run_id"]
    assert engine.get(begun).tenant == "acme"

    everyone = wire.client("everyone", scopes)
    everyone.register()
    (task,) = everyone.claim()
    path = f"/v1/tasks/{task['task_id']}/continue"
    document = {"lease": task["lease"], "result": {"y": 1}}
    if task["tenant"] == "other":
        assert acme.refused("POST", path, document) == (404, "unknown_task")


def test_the_servers_of_a_token_are_limited(
    wire: Wire, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_MAX_SERVERS", 1)
    client.register()
    wanted = {"handlers": ["t.Work"]}
    assert client.refused("POST", "/v1/servers", wanted) == (429, "too_many_servers")
    wire.client("other", ["claim"]).register()
    client.ask("DELETE", f"/v1/servers/{client.server_id}")
    client.register()


def test_a_token_is_compared_without_a_hint_in_time() -> None:
    token = AccessToken("1" * 32, "a", digest_of("fe_a"), ("read",))
    assert token.matches(digest_of("fe_a"))
    assert not token.matches(digest_of("fe_b"))
    assert token.boot_of("s1") != dataclasses.replace(token, id="2" * 32).boot_of("s1")


def test_an_action_records_the_token_as_its_actor(engine: Engine, wire: Wire) -> None:
    run = engine.start(one(), "t.Flow", {"x": 1})
    wire.client("ops-bot", ["admin"]).post(f"/v1/runs/{run.id}/cancel", reason="not needed")
    actors = [
        action
        for entry in engine.history(run.id)
        for action in [str(entry)]
        if "token:ops-bot" in action
    ]
    assert actors
