"""Calls that mypy must refuse, checked by scripts/check-programs; this is never run.

Each `type: ignore` names the error that is expected: mypy reports one that it does not need, so a
call that is accepted by mistake fails the check.
"""

from flowengine import attempt, event_facet, foreach, when, workflow


@event_facet
def fetch(url: str) -> str:
    return url


@event_facet
async def count(text: str) -> int:
    return len(text)


@event_facet
def ask(total: int) -> str:
    return str(total)


@workflow
def pages(urls: list[str]) -> list[str]:
    fetch(5)  # type: ignore[arg-type]
    fetch()  # type: ignore[call-arg]
    fetch("a", depth=1)  # type: ignore[call-arg]
    return foreach(urls, count)  # type: ignore[arg-type]


def start() -> None:
    pages.start(urls=5)  # type: ignore[arg-type]
    pages.options(key="k").start(["a"], 2)  # type: ignore[call-arg]
    pages.options(keys="k")  # type: ignore[call-arg]
    _text: str = pages.start(["a"]).result()  # type: ignore[assignment]
    event_facet(retries=3)  # type: ignore[call-overload]
    fetch.named("x")(1)  # type: ignore[arg-type]
    pages.delay(["a"])  # type: ignore[attr-defined]


def branches(total: int, flag: bool) -> None:
    when(total, lambda: ask(total), otherwise=None)  # type: ignore[call-overload]
    when(flag, lambda x: ask(x))  # type: ignore[arg-type, misc]
    when(flag, lambda: ask("a"), otherwise=None)  # type: ignore[arg-type]
    _number: int = when(flag, lambda: ask(1), otherwise=2)  # type: ignore[assignment]
    ask(when(flag, lambda: ask(1)))  # type: ignore[arg-type]
    attempt(ask(1), catch=lambda error: error.message)  # type: ignore[call-overload]
    attempt(lambda: ask(1), catch=lambda: 1)  # type: ignore[arg-type, misc]
    attempt(lambda: ask(1), catch=lambda error: error.text)  # type: ignore[attr-defined]
    attempt(lambda: ask(1))  # type: ignore[call-overload]
    attempt(lambda: ask(1), failed=lambda error: 1, reraise=False)  # type: ignore[call-overload]
    foreach([1], ask, limit="3")  # type: ignore[call-overload]
    _ = foreach([1], ask).errors  # type: ignore[attr-defined]


@workflow
async def talk(total: int) -> str:
    await ask.acall("a")  # type: ignore[arg-type]
    _number: int = await ask.acall(1)  # type: ignore[assignment]
    await ask(1)  # type: ignore[misc]
    await talk.acall()  # type: ignore[call-arg]
    return await talk.acall("x")  # type: ignore[arg-type]
