"""Limits, rates and circuit breakers in the API of a real Flower."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from flowengine import Limit, Rate, event_facet, workflow
from flowengine.engine import Engine
from flowengine.store import Database
from flowengine.testing import Flow
from tests.acceptance.test_flower import Answer, Flower, running

LOGIN = "eva:secret"
SHOP = "shop-0123456789abcdef"


@event_facet(name="limits_in_flower.work", limit=Limit("customer:{n}", 2))
def work(n: int) -> int:
    return n


@workflow(name="limits_in_flower.one")
def one(n: int) -> int:
    return work(n)


@event_facet(name="limits_in_flower.mail", rate=Rate("mail/eu", 1, per=60))
def mail(n: int) -> int:
    return n


@workflow(name="limits_in_flower.mails")
def mails(n: int) -> int:
    return mail(n)


class Limited(NamedTuple):
    """A Flower, and the engine of the database that it shows."""

    flower: Flower
    engine: Engine
    url: str
    runs: list[str]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    url = f"sqlite:///{tmp_path_factory.mktemp('limits')}/flow.db"
    with Flow(store_url=url):
        runs = [one.start(7).id for _ in range(3)]
        for n in range(2):
            mails.start(n)
    database = Database(url)
    options = {"FLOWENGINE_TENANT_TOKENS": f"shop={SHOP}"}
    try:
        with running("flowengine", url, f"--basic_auth={LOGIN}", **options) as flower:
            yield Limited(flower, Engine(database), url, runs)
    finally:
        database.close()


def post(
    flower: Flower, path: str, body: object = None, *, login: str = LOGIN, **headers: str
) -> Answer:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(flower.url + path, data=data, method="POST")
    if login:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.read().decode())


def get(flower: Flower, path: str) -> Any:
    answer = flower.get(path, login=LOGIN)
    assert answer.status == 200, answer.text
    return answer.json()


def test_the_api_shows_limits_and_rates_with_those_that_hold_them_and_wait(
    limited: Limited,
) -> None:
    (limit,) = get(limited.flower, "/api/limits?waiting=1")["limits"]
    assert (limit["key"], limit["number"], limit["used"]) == ("customer:7", 2, 2)
    assert (limit["waiting"], limit["set_by"]) == (1, None)
    found = get(limited.flower, "/api/limits/customer:7")
    held = {holder["run"]: holder["step"] for holder in found["holders"]}
    assert held == dict.fromkeys(limited.runs[:2], "one.work")
    assert get(limited.flower, "/api/limits?overridden=1") == {"limits": [], "cursor": None}
    rate = get(limited.flower, "/api/rates/mail%2Feu")
    assert (rate["key"], rate["per"], rate["used"], rate["waiting"]) == ("mail/eu", 60.0, 1, 1)
    assert [one["key"] for one in get(limited.flower, "/api/rates")["rates"]] == ["mail/eu"]


def test_a_limit_is_changed_and_reset_by_the_login_of_the_request(limited: Limited) -> None:
    body = {"number": 3, "reason": "they paid"}
    changed = post(limited.flower, "/api/limits/customer:7", body)
    assert changed.status == 200, changed.text
    assert (changed.json()["number"], changed.json()["code_number"]) == (3, 2)
    assert changed.json()["waiting"] == 0, "the third is admitted"
    assert limited.engine.limits.get("customer:7").set_by == "person:eva"
    (shown,) = get(limited.flower, "/api/limits?overridden=1")["limits"]
    assert (shown["set_by"], shown["set_reason"]) == ("person:eva", "they paid")
    reset = post(limited.flower, "/api/limits/customer:7/reset", {"reason": "over"})
    assert (reset.status, reset.json()["number"], reset.json()["set_by"]) == (200, 2, None)
    found = [(each.action, each.actor, each.reason) for each in limited.engine.actions(limit=2)]
    assert found == [
        ("reset limit", "person:eva", "over"),
        ("set limit", "person:eva", "they paid"),
    ]


def test_a_rate_is_changed_with_its_period(limited: Limited) -> None:
    changed = post(limited.flower, "/api/rates/mail%2Feu", {"number": 5, "per": 30})
    assert (changed.status, changed.json()["per"]) == (200, 30.0)
    assert post(limited.flower, "/api/rates/mail%2Feu/reset").json()["per"] == 60.0


def test_a_breaker_is_held_open_changed_and_reset(limited: Limited) -> None:
    opened = post(limited.flower, "/api/breakers/payments", {"open": True, "reason": "the bank"})
    assert opened.status == 200, opened.text
    (shown,) = get(limited.flower, "/api/breakers")["breakers"]
    assert (shown["name"], shown["state"], shown["set_by"]) == (
        *("payments", "held open"),
        "person:eva",
    )
    assert post(limited.flower, "/api/breakers/payments", {"timeout": 7}).status == 200
    assert get(limited.flower, "/api/breakers")["breakers"][0]["timeout"] == 7
    assert post(limited.flower, "/api/breakers/payments/reset").json()["is_closed"] is False
    assert get(limited.flower, "/api/breakers") == {"breakers": []}
    assert post(limited.flower, "/api/breakers/payments/reset").status == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/api/limits/customer:8", {"number": 3}, 404, "did you mean 'customer:7'?"),
        ("/api/limits/a%00b", {"number": 3}, 404, "no limit of this name"),
        ("/api/limits/customer:7", {}, 400, "say which number"),
        ("/api/limits/customer:7", {"number": -1}, 400, "-1 is no number of a limit"),
        ("/api/limits/customer:7", {"number": "3"}, 400, "no number of a limit"),
        ("/api/limits/customer:7", {"number": 3, "per": 1}, 400, "'per' is unknown"),
        ("/api/limits/customer:7", {"number": 3, "reason": "a\0b"}, 400, "reason must be text"),
        ("/api/limits/customer:7", {"number": 3, "reason": 3}, 400, "reason must be text"),
        ("/api/limits/customer:7", b"{", 400, "must be a JSON object"),
        ("/api/limits/customer:7", b"[1]", 400, "must be a JSON object"),
        ("/api/rates/mail%2Feu", {"number": 3, "per": 0}, 400, "is no period"),
        ("/api/breakers/a%00b", {"open": True}, 404, "no circuit breaker of this name"),
        ("/api/breakers/payments", {}, 400, "nothing is set"),
        ("/api/breakers/payments", {"open": 1}, 400, "open must be true"),
        ("/api/breakers/payments", {"timeout": 1e9}, 400, "no timeout of a breaker"),
    ],
)
def test_a_wrong_change_is_refused_with_its_reason(
    limited: Limited, path: str, body: object, status: int, says: str
) -> None:
    before = limited.engine.actions(limit=1)
    answer = post(limited.flower, path, body)
    assert (answer.status, says in answer.json()["error"]) == (status, True), answer.text
    assert limited.engine.actions(limit=1) == before


def test_a_wrong_query_is_refused_with_its_reason(limited: Limited) -> None:
    for path, status in (
        ("/api/limits?limit=0", 400),
        ("/api/limits?waiting=maybe", 400),
        ("/api/limits/nope", 404),
        ("/api/rates/nope", 404),
        ("/api/limits/customer:7/reset", 405),
    ):
        assert limited.flower.get(path, login=LOGIN).status == status, path


def test_only_a_login_that_sees_all_tenants_reads_and_changes_limits(limited: Limited) -> None:
    changes = ("/api/limits/customer:7/reset", "/api/limits/customer:7", "/api/breakers/p/reset")
    for login, status in ((None, 401), ("eva:wrong", 401), (f"anybody:{SHOP}", 403)):
        for path in ("/api/limits", "/api/limits/customer:7", "/api/rates", "/api/breakers"):
            assert limited.flower.get(path, login=login).status == status, path
        for path in changes:
            answer = post(limited.flower, path, {"number": 9}, login=login or "")
            if path.endswith("reset"):
                answer = post(limited.flower, path, login=login or "")
            assert answer.status == status, path
    for path in changes:
        assert post(limited.flower, path, Sec_Fetch_Site="cross-site").status == 403
    assert limited.engine.limits.get("customer:7").set_by is None


def test_a_flower_that_only_reads_changes_no_limit(limited: Limited) -> None:
    options = (f"--basic_auth={LOGIN}", "--read_only=true")
    with running("flowengine", limited.url, *options) as flower:
        assert get(flower, "/api/limits")["limits"]
        for path in ("/api/limits/customer:7", "/api/breakers/payments"):
            assert post(flower, path, {"number": 9}).status == 403
            assert post(flower, f"{path}/reset").status == 403
