"""Programs that are as expensive as the limits allow, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.acceptance.chaos import tenants_work
from tests.builders import (
    Node,
    block,
    case,
    event,
    facet,
    given,
    joined,
    listed,
    namespace,
    of,
    op,
    program,
    schema,
    step,
    to,
    when,
    workflow,
)

Hostile = tuple[Any, str, dict[str, Any]]  #: a program, its workflow, and its inputs

_ECHO = namespace("tenants", event("echo", "x", "result"), event("fetch", "n:Long", "result"))


def branching(lots: Random) -> Hostile:
    """Facets that call the next one twice: steps in thousands, without a worker."""
    levels = lots.randint(12, 18)
    facets = [facet("F0", "", "n", block(yields=[to("F0", n=1)]))]
    for level in range(1, levels):
        below = f"F{level - 1}"
        total = to(f"F{level}", n=op(of("a.n"), "+", of("b.n")))
        body = block(step("a", below), step("b", below), yields=[total])
        facets.append(facet(f"F{level}", "", "n", body))
    body = block(step("f", f"F{levels - 1}"), yields=[to("W", n=of("f.n"))])
    return program(*facets, workflow("W", "", "n", body)), "W", {}


def recursion(lots: Random) -> Hostile:
    """A facet that calls itself, with a growing value, until a limit ends it."""
    again = step("a", "F", x=joined(given("x"), "x" * lots.randint(1, 2_000)))
    body = when(case(True, again))
    start = block(step("f", "F", x="x"), yields=[to("W", y=1)])
    return program(facet("F", "x", "", body), workflow("W", "", "y", start)), "W", {}


def wide(lots: Random) -> Hostile:
    """A loop of thousands of quick tasks."""
    items = list(range(lots.randint(5_000, 20_000)))
    body = block(
        step("e", "tenants.echo", x=given("i")),
        foreach=("i", given("xs")),
        yields=[to("W", ys=listed(of("e.result")))],
    )
    return program(_ECHO, workflow("W", "xs", "ys", body)), "W", {"xs": items}


def slow(lots: Random) -> Hostile:
    """A loop of thousands of tasks that each keep a pool child for some time."""
    items = list(range(lots.randint(1_000, 5_000)))
    body = block(
        step("e", "tenants.fetch", n=given("i")),
        foreach=("i", given("xs")),
        yields=[to("W", ys=listed(of("e.result")))],
    )
    return program(_ECHO, workflow("W", "xs", "ys", body)), "W", {"xs": items}


def doubling(lots: Random) -> Hostile:
    """Texts of megabytes, each made from the one before."""
    steps = [step("s0", "Keep", x="x" * 1_000)]
    for n in range(1, lots.randint(14, 18)):
        steps.append(step(f"s{n}", "Keep", x=joined(of(f"s{n - 1}.x"), of(f"s{n - 1}.x"))))
    keep = facet("Keep", "x", "y", block(yields=[to("Keep", y=given("x"))]))
    body = block(*steps, yields=[to("W", y=of(f"s{len(steps) - 1}.x"))])
    return program(keep, workflow("W", "", "y", body)), "W", {}


def comparing(lots: Random) -> Hostile:
    """Comparisons of long lists, in every expression of a loop."""
    long = given("xs")
    same: Node = op(long, "==", long)
    for _ in range(lots.randint(5, 40)):
        same = op(same, "&&", op(long, "==", long))
    keep = facet("Keep", "x", "y", block(yields=[to("Keep", y=given("x"))]))
    body = block(
        step("s", "Keep", x=same),
        foreach=("i", given("is")),
        yields=[to("W", ys=listed(of("s.y")))],
    )
    inputs = {"xs": [1] * lots.randint(50_000, 300_000), "is": list(range(200))}
    return program(keep, workflow("W", "xs is", "ys", body)), "W", inputs


def validating(lots: Random) -> Hostile:
    """Instances of a schema that doubles the checks of its value at each level."""
    levels = lots.randint(8, 15)
    defs: dict[str, Any] = {"d0": {"items": {"type": "integer", "minimum": 0}}}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {"allOf": [below, {"anyOf": [below]}]}
    of_field = {"$defs": defs, "$ref": f"#/$defs/d{levels - 1}"}
    shape = schema("Shape", [{"name": "y", "type": "Json", "schema": of_field}])
    body = block(
        step("s", "Shape", y=given("xs")),
        foreach=("i", given("is")),
        yields=[to("W", ys=listed(1))],
    )
    inputs = {"xs": [1] * lots.randint(5, 200), "is": list(range(500))}
    return program(shape, workflow("W", "xs is", "ys", body)), "W", inputs


def nested_loops(lots: Random) -> Hostile:
    """A loop in a loop, whose merged results grow with each item."""
    inner = block(foreach=("j", given("js")), yields=[to("Row", ys=listed(given("j")))])
    row = facet("Row", "js", "ys", inner)
    body = block(
        step("r", "Row", js=given("js")),
        foreach=("i", given("is")),
        yields=[to("W", ys=of("r.ys"))],
    )
    size = lots.randint(100, 300)
    inputs = {"is": list(range(size)), "js": ["x" * 50] * size}
    return program(row, workflow("W", "is js", "ys", body)), "W", inputs


def child_runs(_: Random) -> Hostile:
    return tenants_work.twice.program(), tenants_work.twice.name, {"n": 1}


KINDS: dict[str, Callable[[Random], Hostile]] = {
    each.__name__: each
    for each in (
        *(branching, recursion, wide, slow, doubling, comparing, validating),
        *(nested_loops, child_runs),
    )
}


def draw(lots: Random) -> tuple[str, Hostile]:
    kind = lots.choice(sorted(KINDS))
    return kind, KINDS[kind](lots)
