"""Every example runs alone in an empty directory, and again where it has run before."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.servers import RedisServer
from tests.warm import warm_commands

FOLDER = Path(__file__).parent.parent.parent / "examples"
WITH_REDIS = sorted((FOLDER / "messaging").glob("*.py"))
#: tests/acceptance/django, test_fastapi.py, celery/test_existing_project.py, test_ported_project.py
ELSEWHERE = {
    FOLDER / name for name in ("django_shop", "fastapi_shop.py", "celery_shop", "celery_orders")
}
EXAMPLES = [
    path
    for path in sorted(FOLDER.rglob("*.py"))
    if path not in WITH_REDIS and not ELSEWHERE & {path, *path.parents}
]
SAYS = {
    "quickstart": ["29 words"],
    "agent_poller": [
        "mail to ada: thanks for 4200\n{'receipt': 'receipt for ada', 'sent': True}\n"
        "failed: 0 cents cannot be paid\n"
    ],
    "runner_service": [
        "billing.SendMail: 4200 cents of ada\n{'receipt': '4200 cents of ada', 'sent': True}\n"
        "running ['billing.ProcessPayment', 'billing.SendMail', 'flowengine.execute']\n"
    ],
    "payments": [
        "ada {'receipt': '4200 cents of ada'}\ngrace nothing to pay\n"
        "the agent has deregistered: True\n"
    ],
    "claude_agent": [
        "the model asks for the order of ada\nCOMPLETED {'receipt': '4200 cents for ada'}\n",
        "'turns': 2, 'input_tokens': 20, 'output_tokens': 10",
    ],
    "mcp_server": [
        "tools: flowengine_get_run mcp_shop_Charge mcp_shop_Order\n4200 cents of ada\n"
        "one run: True\nfailed: 0 cents cannot be paid\n"
    ],
    "nightly": [
        "copy []\nshop.daily ['day']\nshop.mail ['text']\n"
        "mail: 2 orders of 2026-11-15\nmail: 2 orders of 2026-11-16\n"
        "one after the other: True\ncopied checked\nschedules: copy shop.daily\n"
    ],
    "order_pipeline": ["mail to ada@example.org", "receipt-", "only 0 of teapot left"],
    "fan_out": ["'stations': 60"],
    "branches": [
        "ada: 4000 approved\nada: 90000 is looked at by a person\nbob: 4000 is looked at",
        "to security: mallory tried again\nrefused\n",
    ],
    "approval": [
        "eva was faster than otto\ncontract with Ada, signed (welcome)\n",
        "contract with Bob, put aside\nCarl, put aside\n",
    ],
    "webhook": [
        "run_completed webhook.order: well\nrun_failed webhook.order: no money left\n"
        "step_failed order.charge: no money left\nthe receiver of the signal was called\n"
    ],
    "encrypted_values": ["Ada Lovelace has a cold\nstored as it is: False\nencrypted: True\n"],
    "history": ["2 RUNNING trip.sail: try 1 failed\n", "the same decisions: COMPLETED\n"],
    "retention": ["older than a month: 0\nremoved: 3\nleft: 0\nviolated invariants: []\n"],
    "saga": [
        "room 7 reserved and seat 12A reserved, paid with visa\nthe run is COMPLETED: it has ended",
        "the trip is HELD\n",
        "released: seat 12B reserved\n",
        "released: room 8 reserved\n",
        "cancelled by person:eva: the customer called\n",
    ],
    "retry": [
        "charge Ada\nthe depot is closed\nmail: picked up by the customer\nmail: shipped for 100\n"
        "the run has completed\nmail: shipped for 100\n"
    ],
    "recovery": [
        "dinner, receipt for visa\ndinner, to be paid in cash (no money left",
        "ConnectionError at dinner.payment.charge",
        "dinner.payment.charge: ValueError: this is no card",
    ],
    "clerk": [
        "ada got 2100 cents\n",
        "otto has rejected the call: the kettle is from 2019",
        "nothing about teapots\nthe first mail was answered once: True\n",
    ],
    "agent_team": ["An essay of 5 facts.\n3 agents were asked, and the run is COMPLETED\n"],
    "agent_chat": ["3 messages so far, in flowengine.db\n"],
    "agent_loop": ["100 things found in 300 rounds\n300 steps are stored\n"],
    "durable_agent": [
        "Paris has three times as many people as Oslo; nobody lives in Atlantis.\nask_model#0: ",
        "call_tool#6: FAILED\n",
    ],
    "durable_saga": [
        "room in Oslo, seat to Oslo\ncancelled: room in Atlantis\n"
        "no trip to Atlantis: no airport answers",
    ],
    "rate_limited_crawler": [
        "300 words on 3 hosts\nnever more than 2 at a time: True\n"
        "never more than 12 in a second: True, with 15 tries\n"
    ],
    "cached_rates": [
        "Edsger pays 125.00\nthe last rate is from an earlier run: True\n"
        "the bank was asked at most once: True, without a try: True\n"
    ],
    "async_crawler": ["124,750 words on 500 pages\nat most 20 connections: True\n"],
    "loops": [
        "7 pages; missing: [5] 404 for site/gone\n",
        "at most 3 connections at once: True",
    ],
    "child_runs": [
        "no[0] in English\nyes[0] in English, yes[1] in English, yes[2] in English",
        "pages: [2, 3]",
    ],
    "composition": ["usage of /: 51\nlarger: /music/\nlarger: /music/\n"],
    "expressions": ["Dear ada (EUR): 900 cents, written in", "'safe': True, 'half': 450.0"],
    "reminders": ["to Ben: Please bring back Emma. Your fine is 220", "'costs': [85, 85]"],
    "two_agents": [
        "Emma: A, 1st shelf",
        "Ulysses: not here",
        "dead letter: a question without a title",
    ],
    "worker_pool": [
        "60 orders wait",
        "60 orders packed, 0 of them by Cid",
        "of the first ten",
        "still registered: Cid",
    ],
    "guarded_service": [
        "the service says rain",
        "down: 3 calls were made, 7 were refused",
        "up again: the breaker is closed",
        "a wrong address is not a failure: 0 counted",
    ],
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_commands(tmp_path_factory.mktemp("warm")) / "python"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_alone_and_again(python: Path, example: Path, tmp_path: Path) -> None:
    for _ in range(2):
        run(python, example, tmp_path, {})


def beside_failures(errors: str) -> str:
    """Return what is written to stderr beside the log lines of failures and alarms.

    Many examples fail on purpose, and configure no logging: Python writes warnings to stderr.
    """
    kept, was_failure = [], False
    for line in errors.splitlines():
        was_failure = bool(_FAILURE.match(line)) or (was_failure and line.startswith("  "))
        if not was_failure:
            kept.append(line)
    return "\n".join(kept)


_FAILURE = re.compile(
    r"\S+ (?:failed|was lost): .* \(try \d+ of run [0-9a-f]{32}\b"
    r"|run [0-9a-f]{32} of \S+ failed\b|alarm of run"
)


@pytest.mark.parametrize("example", WITH_REDIS, ids=lambda path: path.stem)
def test_an_example_runs_with_a_redis_and_again(
    python: Path, example: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    for _ in range(2):
        run(python, example, tmp_path, {"FLOWENGINE_EXAMPLE_REDIS": redis_server.url})


def run(python: Path, example: Path, directory: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [python, "-W", "error", example],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert beside_failures(done.stderr) == ""
    for text in SAYS[example.stem]:
        assert text in done.stdout
