"""Random programs that can be loaded, with inputs and handlers.

Every construct that is executed occurs: event facets with and without retries and bodies,
plain facets, facets without body, workflows as steps, several blocks, inline bodies,
foreach over inputs, literals and results, at any depth, yields to every enclosing facet,
sys.log, sys.assert, and arithmetic that may fail. References go only to what was written
before, so there is no cycle; then the statements are shuffled, so that the text has forward
references all the same.

A program is drawn from a seed and a size. Hypothesis, left to draw each word by itself,
writes mostly trivial ones; it still finds a small example of what it breaks, by the size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.happenings import Failed, Lost, Succeeded, TryOutcome
from tests.building import (
    Node,
    block,
    check,
    event,
    facet,
    given,
    item,
    listed,
    log,
    of,
    op,
    program,
    step,
    to,
    workflow,
)

T = TypeVar("T")

PARAMS: list[str | Node] = ["a", {"name": "xs", "type": "Json", "default": [1, 2]}]
RETURNS = "v l:[Json]"


@dataclass(frozen=True)
class Case:
    """A program, what it is started with, and how its event facets answer."""

    document: Node
    inputs: dict[str, Any]
    seed: int
    failing: int  #: so many answers of a hundred are failures
    silent: int  #: so many are never given

    def answer(self, task: TaskDefinition) -> TryOutcome | None:
        """What the outside says to a task: always the same to the same question."""
        question = [self.seed, task.name, task.data, task.try_number, task.losses]
        dice = hashlib.blake2b(json.dumps(question, sort_keys=True).encode()).digest()
        roll = dice[0] % 100
        if roll < self.silent:
            return None
        roll -= self.silent
        if roll < self.failing:
            return Failed({"type": "Oops", "message": f"no {task.name}"}, retry=dice[1] % 8 > 0)
        roll -= self.failing
        if roll < 5 and self.failing:
            return Lost("killed")
        result: dict[str, Any] = {"v": dice[2] % 4, "l": [dice[3] % 3, dice[4] % 3][: dice[5] % 3]}
        if dice[6] % 20 == 0 and self.failing:
            del result["v"]
        return Succeeded(result)

    def __repr__(self) -> str:
        answers = f"seed={self.seed}, failing={self.failing}, silent={self.silent}"
        return f"Case({answers}, inputs={self.inputs}):\n{as_text(self.document)}\n"


@dataclass
class Scope:
    """What may be written at one place."""

    numbers: list[Node] = field(default_factory=list)
    lists: list[Node] = field(default_factory=list)
    targets: tuple[str, ...] = ()  #: facets that a yield may go to
    depth: int = 0

    def inside(self, target: str) -> Scope:
        targets = tuple(dict.fromkeys((*self.targets, target)))
        return Scope([*self.numbers], [*self.lists], targets, self.depth + 1)

    def copy(self) -> Scope:
        return Scope([*self.numbers], [*self.lists], self.targets, self.depth)


class Writer:
    """Writes one program."""

    def __init__(self, seed: int, size: int) -> None:
        self._random = Random(seed)
        self._size = size  #: how many statements a block has at most
        self._numbers = count(1)
        self.callables = ["E", "E", "E", "R", "N"]  #: what may be called so far, by weight

    def _one(self, *options: T) -> T:
        return self._random.choice(options)

    def _chance(self, percent: int) -> bool:
        return self._random.random() * 100 < percent

    def _many(self, most: int) -> range:
        return range(self._random.randint(0, most))

    # --- expressions ---

    def number(self, scope: Scope, depth: int = 0) -> Any:
        kind = self._one("literal", "reference", "reference", "reference", "sum", "risk")
        if kind == "reference" and scope.numbers:
            return self._one(*scope.numbers)
        if kind == "sum" and depth < 2:
            symbol = self._one("+", "-", "*")
            return op(self.number(scope, depth + 1), symbol, self.number(scope, depth + 1))
        if kind == "risk" and depth < 1 and self._chance(30):
            if self._chance(50):
                return op(self.number(scope, 1), "/", self.number(scope, 1))
            return item(self.items(scope, 1), 0)
        return self._random.randint(0, 3)

    def items(self, scope: Scope, depth: int = 0) -> Any:
        kind = self._one("literal", "reference", "reference", "join")
        if kind == "reference" and scope.lists:
            return self._one(*scope.lists)
        if kind == "join" and depth < 1:
            return op(self.items(scope, 1), "+", self.items(scope, 1))
        return listed(*(self.number(scope, 2) for _ in self._many(2)))

    # --- blocks and statements ---

    def body(self, scope: Scope) -> list[Node]:
        blocks: list[Node] = []
        seen = scope.copy()
        for _ in range(self._one(1, 2, 2, 3) if scope.depth == 0 else self._one(1, 1, 2)):
            inner = seen.copy()
            foreach = None
            if self._chance(35):
                variable = f"i{next(self._numbers)}"
                foreach = (variable, self.items(seen))
                inner.numbers.append(given(variable))
            statements = self.statements(inner)
            yields = [self.yielded(inner) for _ in self._many(2)]
            blocks.append(block(*statements, yields=yields, foreach=foreach))
            if foreach is None:
                seen = inner  # later blocks see the steps of earlier ones
        return blocks

    def statements(self, scope: Scope) -> list[Node]:
        written: list[Node] = []
        most = max(1, self._size - scope.depth)
        for _ in range(self._random.randint(0 if scope.depth else most // 2, most)):
            if self._chance(15):
                compared = op(self.number(scope), self._one("<=", "<", "!="), self.number(scope))
                written.append(check(compared) if self._chance(60) else log(n=self.number(scope)))
            else:
                written.append(self.call(scope))
        self._random.shuffle(written)
        return written

    def call(self, scope: Scope) -> Node:
        target = self._one(*self.callables)
        name = f"s{next(self._numbers)}"
        arguments = {"a": self.number(scope)}
        if self._chance(40):
            arguments["xs"] = self.items(scope)
        body: list[Node] = []
        own_results = target in ("E", "R", "B")
        if scope.depth < 2 and self._chance(30):
            inner = scope.inside(target)
            inner.numbers += [given("a"), of(f"{name}.a")]
            inner.lists.append(given("xs"))
            if own_results:
                inner.numbers.append(of(f"{name}.v"))
                inner.lists.append(of(f"{name}.l"))
            body = self.body(inner)
        scope.numbers.append(of(f"{name}.a"))
        scope.lists.append(of(f"{name}.xs"))
        if target != "N":
            # Twice: results are what a program is about.
            scope.numbers += [of(f"{name}.v")] * 2
            scope.lists += [of(f"{name}.l")] * 2
        return step(name, target, *body, **arguments)

    def yielded(self, scope: Scope) -> Node:
        target = self._one(*scope.targets)
        attributes: dict[str, Any] = {}
        if self._chance(70):
            attributes["v"] = self.number(scope)
        if self._chance(60) or not attributes:
            attributes["l"] = self.items(scope)
        return to(target, **attributes)

    def facet_body(self, name: str) -> list[Node]:
        depth = 0 if name == "W" else 2
        return self.body(Scope([given("a")], [given("xs")], (name,), depth))

    def program(self) -> Node:
        declared = [
            event("E", PARAMS, RETURNS),
            event("R", PARAMS, RETURNS, options={"retry": {"attempts": 2}, "max_losses": 1}),
            facet("N", PARAMS),
        ]
        for name, make in (("B", event), ("P", facet), ("V", workflow)):
            if self._chance(50):
                declared.append(make(name, PARAMS, RETURNS, *self.facet_body(name)))
                self.callables += [name, name]
        return program(*declared, workflow("W", PARAMS, RETURNS, *self.facet_body("W")))


def case_of(seed: int, size: int, failing: int, silent: int) -> Case:
    inputs = {"a": seed % 4, "xs": [seed % 3, seed % 2, seed % 4][: seed % 4]}
    return Case(Writer(seed, size).program(), inputs, seed, failing, silent)


def cases() -> st.SearchStrategy[Case]:
    return st.builds(
        case_of,
        seed=st.integers(0, 2**32),
        size=st.sampled_from([1, 2, 3, 4, 5, 6, 6, 6]),
        failing=st.sampled_from([0, 5, 20]),
        silent=st.sampled_from([0, 0, 25]),
    )


# --- to be read by people ---


def as_text(document: Node) -> str:
    """A program as AFL text, more or less."""
    return "\n".join(line for node in document["declarations"] for line in _declaration(node))


def _declaration(node: Node) -> Iterator[str]:
    kind = {"EventFacetDecl": "event facet", "FacetDecl": "facet", "WorkflowDecl": "workflow"}
    params = ", ".join(p["name"] for p in node["params"])
    yield f"{kind[node['type']]} {node['name']}({params}) {node.get('options') or ''}".rstrip()
    yield from _body(node["body"], "  ")


def _body(blocks: list[Node], indent: str) -> Iterator[str]:
    for node in blocks:
        foreach = node.get("foreach")
        over = f" foreach {foreach['variable']} in {_value(foreach['iterable'])}" if foreach else ""
        yield f"{indent}andThen{over}"
        for statement in node["steps"]:
            yield from _statement(statement, f"{indent}  ")
        for yielded in node["yields"]:
            yield f"{indent}  yield {_call(yielded['call'])}"


def _statement(node: Node, indent: str) -> Iterator[str]:
    match node["type"]:
        case "SysAssertStmt":
            yield f"{indent}sys.assert({_value(node['condition'])})"
        case "SysLogStmt":
            yield f"{indent}sys.log({_arguments(node['args'])})"
        case _:
            yield f"{indent}{node['name']} = {_call(node['call'])}"
            yield from _body(node["body"], f"{indent}  ")


def _call(node: Node) -> str:
    return f"{node['target']}({_arguments(node['args'])})"


def _arguments(arguments: list[Node]) -> str:
    return ", ".join(f"{a['name']} = {_value(a['value'])}" for a in arguments)


def _value(node: Any) -> str:
    match node:
        case {"type": "InputRef", "path": path}:
            return "$." + ".".join(path)
        case {"type": "StepRef", "path": path}:
            return ".".join(path)
        case {"type": "BinaryExpr", "operator": symbol, "left": left, "right": right}:
            return f"({_value(left)} {symbol} {_value(right)})"
        case {"type": "ArrayLiteral", "elements": elements}:
            return f"[{', '.join(map(_value, elements))}]"
        case {"type": "IndexExpr", "target": target, "index": index}:
            return f"{_value(target)}[{_value(index)}]"
    return repr(node)
