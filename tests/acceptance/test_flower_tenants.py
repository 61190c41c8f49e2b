"""The Workflows page in a real Flower, for tokens and apps that are bound to a tenant."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from random import Random
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from flowengine.testing import Flow
from tests.acceptance.test_flower import Answer, Flower, learning, running

SHOP, PRESS = "shop-0123456789abcdef", "press-0123456789abcdef"
OPERATOR = "operator:secret"


class Runs(NamedTuple):
    """A database with a run of each of two tenants."""

    url: str
    shop: str
    press: str


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    url = f"sqlite:///{tmp_path_factory.mktemp('runs')}/flow.db"
    with Flow(store_url=url):
        started = [learning.options(tenant=name).start(1).id for name in ("shop", "<i>press</i>")]
    return Runs(url, *started)


@pytest.fixture(scope="module")
def flower(runs: Runs) -> Iterator[Flower]:
    tokens = f"shop={SHOP},<i>press</i>={PRESS}"
    with running(
        "flowengine", runs.url, f"--basic_auth={OPERATOR}", FLOWENGINE_TENANT_TOKENS=tokens
    ) as flower:
        yield flower
        output = flower.stop()
    assert "shop-0123" not in output, "no token is logged"


def get(flower: Flower, path: str, token: str) -> Answer:
    request = urllib.request.Request(
        flower.url + path, headers={"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.read().decode())


def listed(answer: Answer) -> set[str]:
    assert answer.status == 200, answer.text
    return {run["id"] for run in answer.json()["runs"]}


def test_a_login_sees_all_tenants_and_filters_them(flower: Flower, runs: Runs) -> None:
    assert listed(flower.get("/api/workflows", login=OPERATOR)) == {runs.shop, runs.press}
    assert listed(flower.get("/api/workflows?tenant=shop", login=OPERATOR)) == {runs.shop}
    page = flower.get("/workflows?tenant=shop", login=OPERATOR).text
    assert runs.shop in page
    assert runs.press not in page
    page = flower.get("/workflows", login=OPERATOR).text
    assert "tenant=%3Ci%3Epress%3C%2Fi%3E" in page
    assert "<i>press" not in page
    assert "No such runs." in flower.get("/workflows?tenant=nobody", login=OPERATOR).text
    assert (
        "<dt>Tenant</dt><dd>shop</dd>" in flower.get(f"/workflows/{runs.shop}", login=OPERATOR).text
    )


def test_a_token_sees_the_runs_of_its_tenant_alone(flower: Flower, runs: Runs) -> None:
    for token, mine, other in ((SHOP, runs.shop, runs.press), (PRESS, runs.press, runs.shop)):
        assert listed(get(flower, "/api/workflows", token)) == {mine}
        assert get(flower, f"/api/workflows/{mine}", token).status == 200
        page = get(flower, "/workflows", token)
        assert mine in page.text
        assert other not in page.text
        for path in ("/workflows/", "/api/workflows/", "/api/workflows?before="):
            foreign, missing = (get(flower, path + run, token) for run in (other, "0" * 32))
            assert foreign.status == missing.status == 404
            assert foreign.text.replace(other, "") == missing.text.replace("0" * 32, "")
    assert get(flower, "/api/workflows?tenant=shop", SHOP).status == 200
    refused = get(flower, "/api/workflows?tenant=other", SHOP)
    assert refused.status == 403
    assert refused.json() == {"error": "This login does not see tenant 'other'."}


def test_a_browser_sends_the_token_as_a_password(flower: Flower, runs: Runs) -> None:
    page = flower.get("/workflows", login=f"anybody:{SHOP}")
    assert page.status == 200
    assert runs.shop in page.text
    assert runs.press not in page.text


@pytest.mark.parametrize("token", ["", "operator:secret", SHOP[:-1], SHOP.upper()])
def test_an_unknown_token_is_refused(flower: Flower, runs: Runs, token: str) -> None:
    for path in ("/workflows", "/api/workflows", f"/workflows/{runs.shop}"):
        assert get(flower, path, token).status == 401
        assert flower.get(path, login=f"operator:{token}").status == 401
        assert flower.get(path).status == 401


def test_random_credentials_are_refused(flower: Flower) -> None:
    draw = Random(15)
    address = urlsplit(flower.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=30)
    for number in range(200):
        secret = bytes(draw.randrange(256) for _ in range(draw.randrange(30)))
        encoded = b64encode(draw.choice([secret, b"operator:" + secret])).decode()
        printable = "".join(chr(33 + byte % 94) for byte in secret)
        words = draw.choice([encoded, printable, f"{printable} {encoded}", ""])
        header = f"{draw.choice(['Basic', 'basic', 'Bearer', 'BEARER', 'Token', ''])} {words}"
        path = draw.choice(["/workflows", "/api/workflows", "/api/workflows/metrics"])
        connection.request("GET", path, headers={"Authorization": header})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 401, (number, header)
    connection.close()


def test_a_token_opens_no_page_of_flower_itself(flower: Flower) -> None:
    for path in ("/", "/tasks", "/api/workers", "/api/tasks"):
        assert get(flower, path, SHOP).status == 401
        assert flower.get(path, login=f"anybody:{SHOP}").status == 401


def test_metrics_count_the_unfinished_runs_that_a_login_sees(flower: Flower) -> None:
    path = "/api/workflows/metrics"
    every = flower.get(path, login=OPERATOR).text
    assert '\nflowengine_unfinished_runs{tenant="<i>press</i>"} 1\n' in every
    assert '\nflowengine_unfinished_runs{tenant="shop"} 1\n' in every
    assert "# TYPE flowengine_oldest_unfinished_run_seconds gauge\n" in every
    mine = get(flower, path, SHOP).text
    assert 'flowengine_runs_with_alarm{tenant="shop"} 0\n' in mine
    assert "press" not in mine
    assert "press" not in flower.get(f"{path}?tenant=shop", login=OPERATOR).text
    assert get(flower, f"{path}?tenant=other", SHOP).status == 403
    assert flower.get(path).status == 401


def test_an_app_that_is_bound_shows_the_runs_of_its_tenant(runs: Runs) -> None:
    with running(
        "flowengine", runs.url, FLOWER_UNAUTHENTICATED_API="true", FLOWENGINE_TENANT="shop"
    ) as flower:
        assert listed(flower.get("/api/workflows")) == {runs.shop}
        assert flower.get(f"/workflows/{runs.press}").status == 404
        assert flower.get("/api/workflows?tenant=press").status == 403


def test_tokens_without_a_login_of_flower_open_nothing(runs: Runs) -> None:
    with running(
        "flowengine",
        runs.url,
        FLOWER_UNAUTHENTICATED_API="true",
        FLOWENGINE_TENANT_TOKENS=f"shop={SHOP}",
    ) as flower:
        for path in ("/workflows", "/api/workflows"):
            for answer in (flower.get(path), get(flower, path, SHOP)):
                assert answer.status == 403
                # Flower 2.0 shows no reason.
                assert "start Flower with --basic_auth or --auth" in answer.text or not answer.text
