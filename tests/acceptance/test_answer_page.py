"""People answer a run by signed links, on the page of a real Flower."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from datetime import timedelta

import pytest
from pydantic import BaseModel

from flowengine import wait_for, workflow
from flowengine.settings import Settings
from flowengine.store.database import system_clock
from flowengine.testing import Flow
from tests.acceptance.test_flower import Answer, Flower, running

KEYS = "0123456789abcdef0123456789abcdef"


class Approval(BaseModel):
    granted: bool


@workflow(name="shop.onboarding")
def onboarding() -> bool:
    return wait_for("approval", Approval).granted


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    url = f"sqlite:///{tmp_path_factory.mktemp('links')}/flow.db"
    with Flow(store_url=url, settings=Settings(link_keys=KEYS)) as flow:
        flow.clock.now = system_clock()  # Flower has this clock
        yield flow


@pytest.fixture(scope="module")
def flower(flow: Flow) -> Iterator[Flower]:
    url = flow.engine.database.url.render_as_string(False)
    options = ("--basic_auth=ada:secret",)
    with running("flowengine", url, *options, FLOWENGINE_LINK_KEYS=KEYS) as flower:
        yield flower


def post(flower: Flower, token: str, value: str | None = None) -> Answer:
    body = urllib.parse.urlencode({} if value is None else {"value": value}).encode()
    request = urllib.request.Request(f"{flower.url}/workflows/answer/{token}", data=body)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, answer.read().decode())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Answer(refusal.code, refusal.read().decode())


def test_a_link_with_a_value_is_confirmed_by_a_click_and_used_once(
    flow: Flow, flower: Flower
) -> None:
    run = flow.start(onboarding)
    token = run.answer_link("approval", Approval(granted=True), actor="<i>eva</i>")
    page = flower.get(f"/workflows/answer/{token}")
    assert page.status == 200
    assert "<i>" not in page.text
    assert "&lt;i&gt;eva&lt;/i&gt;" in page.text
    assert run.state == "RUNNING", "opening a link answers nothing"
    assert "The answer is stored" in post(flower, token).text
    assert run.result(timeout=0) is True
    again = post(flower, token)
    assert (again.status, "the run has ended" in again.text) == (409, True)
    opened = flower.get(f"/workflows/answer/{token}")
    assert (opened.status, "was answered" in opened.text) == (409, True)
    assert "<button" not in opened.text


def test_a_link_without_a_value_asks_for_it(flow: Flow, flower: Flower) -> None:
    run = flow.start(onboarding)
    token = run.answer_link("approval", actor="eva")
    assert "granted" in flower.get(f"/workflows/answer/{token}").text
    assert "is not JSON" in post(flower, token, "yes").text
    misfit = post(flower, token, '{"granted": "perhaps"}')
    assert (misfit.status, "granted" in misfit.text) == (409, True)
    assert post(flower, token, '{"granted": false}').status == 200
    assert run.result(timeout=0) is False


def test_forged_and_expired_links_show_nothing_of_the_run(flow: Flow, flower: Flower) -> None:
    run = flow.start(onboarding)
    expired = run.answer_link("approval", True, valid_for=timedelta(days=-1))
    for token in (expired, expired[:-3], "x.y", "%00.y"):
        for answer in (flower.get(f"/workflows/answer/{token}"), post(flower, token)):
            assert answer.status == 403
            assert "onboarding" not in answer.text
    assert run.state == "RUNNING"
