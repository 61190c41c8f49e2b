"""A run returns the result of its body as plain Python, for any composition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowengine import RunFailed, Workflow, attempt, event_facet, facet, foreach, when, workflow
from flowengine.testing import Flow
from tests.examples_drawn import AT_RANDOM

Part: TypeAlias = Callable[[Any], Any]  #: a piece of a body: a whole number in, another out


class Refused(Exception):
    pass


class Odd(Refused):
    pass


@event_facet
def step(n: int) -> int:
    if n % 7 == 0:
        raise Refused(f"{n} is refused")
    if n % 11 == 0:
        raise Odd(f"{n} is odd")
    return n % 97


@event_facet
def total(numbers: list[int]) -> int:
    return sum(numbers) % 97


@event_facet
def pair(n: int) -> tuple[int, int]:
    return n, n + 1


@facet
def halved(n: int) -> int:
    return when(n < 10, n, otherwise=lambda: halved(step(n - 7)))


def composed(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    return st.one_of(
        st.tuples(parts, parts).map(lambda p: lambda x: p[1](p[0](x))),
        st.tuples(parts, parts).map(lambda p: lambda x: p[0](x) + p[1](x)),
        st.tuples(parts, parts, parts).map(
            lambda p: lambda x: when(p[0](x) > 20, lambda: p[1](x), otherwise=lambda: p[2](x))
        ),
        st.tuples(parts, parts, parts).map(
            lambda p: lambda x: when((x > 50, lambda: p[0](x)), (x > 5, x), otherwise=p[1](p[2](x)))
        ),
        st.tuples(parts, parts).map(
            lambda p: lambda x: attempt(lambda: p[0](x), catch=lambda error: p[1](x + 1))
        ),
        st.tuples(parts, parts).map(
            lambda p: (
                lambda x: attempt(
                    lambda: p[0](x),
                    catch={Odd: lambda error: when(error.type == "Odd", x, otherwise=1)},
                    always=lambda: p[1](3),
                )
            )
        ),
        st.tuples(parts, parts).map(
            lambda p: lambda x: attempt(lambda: p[0](x), failed={Odd: lambda error: p[1](x + 1)})
        ),
        parts.map(lambda p: lambda x: total(foreach([x, x + 1, 5], lambda each: p(each)))),
        parts.map(
            lambda p: (
                lambda x: total(
                    foreach([x, x + 1, 7], lambda e: p(e), collect_errors=True, limit=2).results
                )
            )
        ),
        parts.map(lambda p: lambda x: unpacked(p(x))),
    )


def unpacked(n: Any) -> Any:
    one, other = pair(n)
    return one * 2 - other


SMALL: list[Part] = [step, halved, lambda x: x, lambda x: step(x * 3 + 1), lambda x: step(14)]
BODIES = st.recursive(st.sampled_from(SMALL), composed, max_leaves=8)


def made(part: Part) -> Workflow[[int], int]:
    def body(n: int) -> int:
        return part(n)  # type: ignore[no-any-return]

    return workflow(name="composed.body")(body)


@settings(max_examples=400 if AT_RANDOM else 12, suppress_health_check=list(HealthCheck))
@given(part=BODIES, n=st.integers(0, 60))
def test_a_run_returns_the_result_of_plain_python(part: Part, n: int) -> None:
    body = made(part)
    expected: object
    try:
        expected = body.fn(n)
    except Refused:
        expected = "refused"
    found: object
    with Flow() as flow:
        try:
            found = flow.run(body, n)
        except RunFailed as failed:
            found = "refused" if failed.error_type in ("Refused", "Odd") else str(failed)
    assert found == expected
