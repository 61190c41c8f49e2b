"""The linter finds code that a trace would silently misinterpret."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, arg-type"
from __future__ import annotations

import datetime
import os
import random
import time
import uuid
from collections.abc import Callable
from datetime import date
from os import environ
from random import choice
from time import monotonic as ticks
from typing import Any

import pytest

from flowengine.authoring import event_facet, facet, foreach, workflow
from flowengine.authoring.lint import lint
from flowengine.errors import UntraceableCode

MODES = {"fast": 1}


@event_facet
def fetch(url: str) -> Any: ...


def is_none(url):
    if url is None:
        return 1
    return fetch(url)


def is_not_on_a_result(url):
    page = fetch(url).page
    return page is not None


def is_through_names(url):
    a = [fetch(url)]
    for b in a:
        c = b
    return c is None


def a_match(mode):
    match mode:
        case "a":
            return fetch("a")


def a_try(url):
    try:
        return fetch(url)
    except ValueError:
        return ""


def a_while(url):
    while True:
        fetch(url)


def an_isinstance(url):
    return isinstance(url, str)


def a_conversion(url):
    return f"{url!r}"


def a_clock(url):
    return fetch(time.time())


def a_renamed_clock(url):
    return fetch(ticks())


def a_datetime(url):
    return datetime.datetime.now(), datetime.datetime.utcnow()


def a_date(url):
    return date.today()


def a_random(url):
    return random.random()


def a_choice(url):
    return choice([1, 2])


def a_uuid(url):
    return uuid.uuid4()


def an_environ(url):
    return os.environ["HOME"]


def a_bare_environ(url):
    return environ.get("HOME")


def a_getenv(url):
    return os.getenv("HOME")


def a_local_import(url):
    import secrets
    from time import time as now

    return now(), secrets.token_hex()


def a_sleep(url):
    time.sleep(1)


def in_a_lambda(urls):
    return foreach(urls, lambda url: fetch(url is None))


@pytest.mark.parametrize(
    ("function", "offset", "cure"),
    [
        (is_none, 1, "`is` compares the symbol.*`== None`"),
        (is_not_on_a_result, 2, "`is`"),
        (is_through_names, 4, "`is`"),
        (a_match, 1, r"`match`.*when\("),
        (a_try, 1, r"`try`.*attempt\("),
        (a_while, 1, "`while`.*foreach"),
        (an_isinstance, 1, "`isinstance` inspects the symbol"),
        (a_conversion, 1, "`!r`.*concat"),
        (a_clock, 1, r"`time\.time` reads the clock.*as an input"),
        (a_renamed_clock, 1, r"`time\.monotonic` reads the clock"),
        (a_datetime, 1, r"`datetime\.datetime\.now` reads the clock"),
        (a_date, 1, r"`datetime\.date\.today` reads the clock"),
        (a_random, 1, r"`random\.random` draws a random value"),
        (a_choice, 1, r"`random\.choice` draws a random value"),
        (a_uuid, 1, r"`uuid\.uuid4` makes an id.*flowengine\.uuid\(\)"),
        (an_environ, 1, r"`os\.environ` reads the environment"),
        (a_bare_environ, 1, r"`os\.environ` reads the environment"),
        (a_getenv, 1, r"`os\.getenv` reads the environment"),
        (a_local_import, 4, r"`secrets\.token_hex` draws a random value"),
        (a_sleep, 1, r"`time\.sleep` delays the trace"),
        (in_a_lambda, 1, "`is`"),
    ],
)
def test_a_finding_has_a_file_a_line_and_a_cure(
    function: Callable[..., Any], offset: int, cure: str
) -> None:
    line = function.__code__.co_firstlineno + offset
    with pytest.raises(UntraceableCode, match=rf"{__file__}:{line}: .*{cure}") as raised:
        lint(function)
    assert raised.value.function == f"{__name__}.{function.__qualname__}"


def harmless(urls, mode="fast", extra=None):
    number = MODES["fast"]
    text = str(number)
    if number is None or text is None:
        return None
    try:
        level = int("3")
    except ValueError:
        level = 1
    match number:
        case 1:
            level = 2
    label = f"{number!r}"
    today = datetime.date(2026, 1, 1)
    rng = random
    return [urls, mode, level, label, today, rng is None, time.strptime, isinstance(level, int)]


def test_code_on_constants_has_no_finding() -> None:
    lint(harmless)


def test_all_findings_are_reported_together_in_source_order() -> None:
    @workflow(name="t.w")
    def many(url):
        if url is None:
            return time.time()
        while fetch(url):
            pass
        return None

    with pytest.raises(UntraceableCode) as raised:
        many.program()
    lines = [int(f.where.rpartition(":")[2]) - many.location.line for f in raised.value.findings]
    assert lines == [2, 3, 4]


def test_plain_facets_and_named_bodies_are_linted_too() -> None:
    @facet(name="t.f")
    def f(url):
        return url is None

    @workflow(name="t.w")
    def w(url):
        return f(url)

    @workflow(name="t.v")
    def v(urls):
        return foreach(urls, is_none)

    for each in (w, v):
        with pytest.raises(UntraceableCode):
            each.program()


def test_an_event_facet_is_not_linted() -> None:
    @event_facet(name="t.e")
    def e(url):
        while url is None:
            time.sleep(1)
        return time.time()

    @workflow(name="t.w")
    def w(url):
        return e(url)

    assert w.program()


def test_a_function_without_source_is_not_linted() -> None:
    names: dict[str, Any] = {"__name__": "made"}
    exec("def made(url):\n    return url is None", names)
    lint(names["made"])
    lint(lambda url: url is None)
