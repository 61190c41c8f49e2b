"""`flowengine check` warns of code in durable functions that a replay would not repeat."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, name-defined"
from __future__ import annotations

import asyncio
import datetime
import os
import random as python_random
import re
import subprocess
import threading
import time
import urllib.request
import uuid as python_uuid
from collections.abc import Callable
from typing import Any

import pytest

from flowengine import event_facet, foreach, now, random, sleep, uuid, workflow
from flowengine.authoring.function_lint import function_findings
from flowengine.authoring.validation import findings_of

PRICES = {"tea": 3}
seen: list[str] = []


@event_facet
def ask(text: str) -> str:
    return text


@workflow
def graph(text: str) -> str:
    return ask(text)


async def reads_a_clock(text):
    return await ask(f"{text} at {time.time()}")


async def reads_a_date(text):
    return await ask(f"{text} at {datetime.datetime.now()}")


async def makes_an_id(text):
    return await ask(f"{text} {python_uuid.uuid4()}")


async def draws(text):
    return await ask(python_random.choice([text]))


async def reads_the_environment(text):
    return await ask(os.environ["HOME"])


async def opens(text):
    with open(text) as file:
        return await ask(file.read())


async def fetches(text):
    return await ask(urllib.request.urlopen(text).read())


async def starts_a_process(text):
    return await ask(subprocess.run([text], check=True).stdout)


async def uses_a_thread(text):
    threading.Thread(target=print).start()
    return await ask(await asyncio.to_thread(len, text))


async def blocks(text):
    time.sleep(5)
    return await ask(text)


async def keeps_a_global(text):
    global seen
    seen = [text]
    return await ask(text)


async def changes_a_global(text):
    seen.append(text)
    return await ask(text)


async def reads_a_global(text):
    return await ask(", ".join(seen))


async def iterates_over_a_set(text):
    return [await ask(one) for one in set(text)]


async def awaits_nothing(text):
    ask(text)
    return await ask(text)


async def awaits_no_named_call(text):
    ask.named("x").acall(text)
    return await ask(text)


async def sleeps_not(text):
    sleep(3)
    return await ask(text)


async def traces(text):
    return foreach([text], ask)


async def starts(text):
    return graph.start(text)


@pytest.mark.parametrize(
    ("body", "finding"),
    [
        (awaits_nothing, r"`ask` is called and never awaited: write `await ask\(…\)`"),
        (awaits_no_named_call, "never awaited"),
        (sleeps_not, r"`sleep` is called and never awaited: write `await sleep\(…\)`"),
        (traces, r"`foreach` makes steps of a traced workflow, .* write `await gather"),
        (starts, "`graph` is started by each replay once more: await its call"),
        (
            reads_a_clock,
            "`time.time` reads the clock, .* another value: write now()",
        ),
        (reads_a_date, "`datetime.datetime.now` reads the clock"),
        (makes_an_id, "`uuid.uuid4` makes an id, .* write uuid()"),
        (draws, "`random.choice` draws a random value, .* write random()"),
        (reads_the_environment, "`os.environ` reads the environment, .* pass it as an input"),
        (opens, "`open` does input or output, again in each replay: do it in an event facet"),
        (fetches, "`urllib.request.urlopen` does input or output"),
        (starts_a_process, "`subprocess.run` starts a process"),
        (uses_a_thread, "to_thread` uses threads"),
        (blocks, "`time.sleep` blocks the worker and is in no record: write `await sleep"),
        (keeps_a_global, "`global seen` is a value of this process"),
        (changes_a_global, "`seen` is a global value, and each replay changes it once more"),
        (reads_a_global, "`seen` is a global list, which may change between replays"),
        (iterates_over_a_set, r"the order of a set differs between processes: .*sorted\(…\)"),
    ],
)
def test_code_that_differs_in_a_replay_is_found(body: Callable[..., Any], finding: str) -> None:
    found = function_findings(body)
    assert any(re.search(finding, what) for _, what in found), found
    first = body.__code__.co_firstlineno
    assert all(first < at.line < first + 5 for at, _ in found)


async def sound(text: str, at: datetime.datetime | None = None) -> str:
    answers = [text]
    answers.append(f"{now()} {uuid()} {random()}")
    for name in sorted(set(answers)):
        await ask(f"{name} {PRICES['tea']} {os.path.join('a', 'b')} {datetime.timedelta(days=1)}")
    async with asyncio.timeout(5):
        await asyncio.gather(*(ask(one) for one in answers))
    return datetime.datetime(2024, 1, 1).isoformat()


def test_sound_code_has_no_findings() -> None:
    assert function_findings(sound) == []


def test_the_findings_of_a_function_are_warnings_once() -> None:
    @workflow(name="t.clocked")
    async def clocked() -> str:
        return await ask(str(time.time()))

    @workflow(name="t.calls_clocked")
    def caller() -> str:
        return clocked()

    found = findings_of([clocked.definition, caller.definition])
    assert [one.is_warning for one in found] == [True]
    assert "reads the clock" in found[0].what
