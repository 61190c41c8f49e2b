"""Decorated functions keep their signatures for editors and mypy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """
from collections.abc import Sequence
from flowengine.authoring import Retry, event_facet, facet, foreach, workflow

@event_facet(task_list="io", retry=Retry(attempts=3), timeout=30, aliases=["old.fetch"])
def fetch(url: str, deep: bool = False) -> str: ...

@event_facet
async def count_words(text: str) -> int: ...

@event_facet(name="x.total")
async def total(counts: list[int]) -> int: ...

@facet
def size(url: str) -> int:
    return count_words(fetch(url, deep=True))

@workflow
def word_count(urls: Sequence[str], factor: float = 1.0) -> int:
    counts = foreach(urls, lambda url: size(url) + count_words.named("words")(url))
    reveal_type(counts)
    return total(counts)

reveal_type(fetch)
reveal_type(count_words)
reveal_type(count_words("a b"))
reveal_type(foreach(["a"], count_words, name="each"))
reveal_type(word_count.start(["a"], factor=2.0))
reveal_type(word_count.options(key="k", priority=1, labels={"a": "b"}).start(urls=["a"]))
reveal_type(word_count.start(["a"]).result(timeout=5))
reveal_type(word_count.fn(["a"]))
reveal_type(fetch.run({"url": "a"}))

async def later() -> None:
    reveal_type(await word_count.astart(["a"]))
    reveal_type(await (await word_count.astart(["a"])).aresult())
"""
REVEALED = [
    "list[int]",
    "EventFacet[[url: str, deep: bool =], str]",
    "EventFacet[[text: str], int]",
    "int",
    "list[int]",
    "RunHandle[int]",
    "RunHandle[int]",
    "int",
    "int",
    "dict[str, Any] | flowengine.authoring.standard.WorkflowCall",
    "RunHandle[int]",
    "int",
]
WRONG = """
from flowengine.authoring import event_facet, foreach, workflow
@event_facet
def fetch(url: str) -> str: ...
@event_facet
async def count(text: str) -> int: ...
@workflow
def pages(urls: list[str]) -> list[str]:
    fetch(5)
    fetch()
    fetch("a", depth=1)
    return foreach(urls, count)
pages.start(urls=5)
pages.options(key="k").start(["a"], 2)
pages.options(keys="k")
x: str = pages.start(["a"]).result()
event_facet(retries=3)
fetch.named("x")(1)
pages.delay(["a"])
"""


WAYS = """
from flowengine import (
    CaughtError, and_, attempt, contains, event_facet, foreach, is_in, not_, now, uuid, when,
    workflow,
)

@event_facet
def ask(total: int) -> str: ...
@event_facet
async def later(total: int) -> float: ...
@event_facet
def stop() -> None: ...
@event_facet
def pair(n: int) -> tuple[int, str]: ...

def handle(error: CaughtError) -> int: ...

@workflow
def ways(total: int, flag: bool) -> str:
    reveal_type(when(total > 1, lambda: ask(total), otherwise=lambda: later(total)))
    reveal_type(when(total > 1, lambda: ask(total), otherwise=None))
    reveal_type(when(total > 1, "a", otherwise=lambda: later(total)))
    reveal_type(when(flag, then=1, otherwise="x", name="n"))
    reveal_type(when((total > 1, lambda: ask(1)), (flag, lambda: ask(2)), otherwise=None))
    reveal_type(when((flag, lambda: ask(1)), (flag, lambda: later(2)), otherwise=lambda: None))
    reveal_type(when((total > 1, 1), (flag, 2), (flag, 3), otherwise=None))
    reveal_type(when((total > 1, "a"), (flag, lambda: ask(2)), otherwise=lambda: ask(3)))
    when(flag, lambda: ask(total))
    when((flag, lambda: ask(total)), (flag, stop))
    reveal_type(attempt(lambda: ask(total), catch=lambda error: error.message))
    reveal_type(attempt(lambda: later(total), catch=handle, always=stop))
    reveal_type(attempt(lambda: ask(total), always=stop))
    reveal_type(attempt(lambda: ask(total), catch={ValueError: handle, "WorkerLost": handle}))
    found = foreach([1], lambda n: later(n), collect_errors=True, limit=total)
    reveal_type(found.results)
    reveal_type(found.errors[0].message)
    number, text = pair(1)
    reveal_type(text)
    reveal_type(and_(total > 1, lambda: flag, not_(is_in(1, [2]) & contains("a", "b"))))
    reveal_type(now(after=number))
    reveal_type(uuid())
    return ask(total)
"""
REVEALED_WAYS = [
    "str | float",
    "str | None",
    "str | float",
    "int | str",
    "str | None",
    "str | float | None",
    "int | None",
    "str",
    "str",
    "float | int",
    "str",
    "str | int",
    "list[float]",
    "str",
    "str",
    "bool",
    "datetime.datetime",
    "uuid.UUID",
]
WRONG_WAYS = """
from flowengine import attempt, event_facet, foreach, when
@event_facet
def ask(total: int) -> str: ...
def f(total: int, flag: bool) -> None:
    when(total, lambda: ask(total), otherwise=None)
    when(flag, lambda x: ask(x))
    when(flag, lambda: ask("a"), otherwise=None)
    x: int = when(flag, lambda: ask(1), otherwise=2)
    ask(when(flag, lambda: ask(1)))
    attempt(ask(1), catch=lambda error: error.message)
    attempt(lambda: ask(1), catch=lambda: 1)
    attempt(lambda: ask(1), catch=lambda error: error.text)
    attempt(lambda: ask(1))
    foreach([1], ask, limit="3")
    foreach([1], ask).errors
"""


#: A task as the stubs of `celery-types` describe it.
TASKS = """
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar
from flowengine import EventFacet, event_facet, workflow

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

class Task(Generic[P, R]):
    name: str
    max_retries: int | None
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def run(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def apply_async(self, args: tuple[Any, ...] | None = None) -> Any: ...

def task(fn: Callable[P, R]) -> Task[P, R]: ...

@task
def charge(customer: str, cents: int = 1) -> str: ...

pay = event_facet(charge)
reveal_type(pay)
reveal_type(event_facet(task_list="till")(charge))
untyped: Any = charge
annotated: EventFacet[[str, int], str] = event_facet(untyped)

@workflow
def order(customer: str) -> str:
    reveal_type(pay(customer, cents=2))
    return annotated(customer, 2)
"""
REVEALED_TASKS = [
    "EventFacet[[customer: str, cents: int =], str]",
    "EventFacet[[customer: str, cents: int =], str]",
    "str",
]


FUNCTIONS = """
from flowengine import event_facet, gather, sleep, step, wait_for, workflow
@event_facet(effects=False)
def ask(total: int) -> str: ...
@event_facet
async def later(total: int) -> float: ...
def twice(text: str) -> str: ...
@workflow(version=2, task_list="agents")
async def talk(total: int) -> str:
    reveal_type(await ask.acall(total))
    reveal_type(await later.named("x").acall(total))
    reveal_type(await gather(*(ask.acall(n) for n in range(total)), limit=2))
    reveal_type(await step(twice, "a"))
    reveal_type(await wait_for.acall("approved", bool))
    reveal_type(await sleep(5))
    reveal_type(await talk.acall(1))
    return await ask.acall(total)
@workflow
def graph(total: int) -> str:
    reveal_type(talk(total))
    return talk(total)
reveal_type(talk)
reveal_type(talk.start(1))
"""
REVEALED_FUNCTIONS = [
    "str",
    "float",
    "list[str]",
    "str",
    "bool",
    "datetime.datetime",
    "str",
    "str",
    "FunctionWorkflow[[total: int], str]",
    "RunHandle[str]",
]
WRONG_FUNCTIONS = """
from flowengine import event_facet, workflow
@event_facet
def ask(total: int) -> str: ...
@workflow
async def talk(total: int) -> str:
    await ask.acall("a")
    number: int = await ask.acall(1)
    await ask(1)
    await talk.acall()
    return await talk.acall("x")
"""


PROGRAMS = {
    "functions": FUNCTIONS,
    "wrong_functions": WRONG_FUNCTIONS,
    "signatures": GOOD + TASKS,
    "branches": WAYS,
    "calls": WRONG,
    "wrong_branches": WRONG_WAYS,
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines that mypy prints for each program, without its file. It runs once."""
    folder = tmp_path_factory.mktemp("programs")
    files = {folder / f"{name}.py": source for name, source in PROGRAMS.items()}
    for file, source in files.items():
        file.write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, files)],
        cwd=Path(__file__).parents[3],  # with the options of `make check`: mypy uses its cache
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    printed = [line for line in done.stdout.splitlines() if "[empty-body]" not in line]
    # By name: mypy's cache repeats the errors of an unchanged program with its earlier folder.
    return {
        name: [line.partition(f"/{name}.py")[2] for line in printed if f"/{name}.py:" in line]
        for name in PROGRAMS
    }


def _revealed(lines: list[str]) -> list[str]:
    assert not [line for line in lines if "error:" in line], lines
    revealed = [line.partition('"')[2].rstrip('"') for line in lines]
    for prefix in (
        "flowengine.authoring.facets.",
        "flowengine.authoring.function_facets.",
        "flowengine.authoring.launcher_slot.",
        "builtins.",
    ):
        revealed = [line.replace(prefix, "") for line in revealed]
    return revealed


def test_signatures_survive_decoration(lines: dict[str, list[str]]) -> None:
    revealed = _revealed(lines["signatures"])
    assert revealed == REVEALED + REVEALED_TASKS


def test_when_has_the_union_type_of_its_branches(lines: dict[str, list[str]]) -> None:
    assert _revealed(lines["branches"]) == REVEALED_WAYS


def test_wrong_calls_are_reported_at_their_lines(lines: dict[str, list[str]]) -> None:
    errors = {int(line.split(":")[1]) for line in lines["calls"] if ": error:" in line}
    first = WRONG.splitlines().index("    fetch(5)") + 1
    assert errors == set(range(first, first + 11))


def test_wrong_branches_are_reported_at_their_lines(lines: dict[str, list[str]]) -> None:
    errors = {int(line.split(":")[1]) for line in lines["wrong_branches"] if ": error:" in line}
    first = WRONG_WAYS.splitlines().index("def f(total: int, flag: bool) -> None:") + 2
    assert errors == set(range(first, first + 11))


def test_calls_of_durable_functions_keep_their_types(lines: dict[str, list[str]]) -> None:
    assert _revealed(lines["functions"]) == REVEALED_FUNCTIONS


def test_wrong_calls_of_durable_functions_are_reported(lines: dict[str, list[str]]) -> None:
    errors = {int(line.split(":")[1]) for line in lines["wrong_functions"] if ": error:" in line}
    first = WRONG_FUNCTIONS.splitlines().index('    await ask.acall("a")') + 1
    assert errors == set(range(first, first + 5))
