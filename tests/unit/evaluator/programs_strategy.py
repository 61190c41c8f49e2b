"""Random programs that can be loaded, with inputs and handlers.

Every construct that is executed occurs: event facets with and without retries and bodies,
plain facets, facets without body, workflows as steps, several blocks, inline bodies,
foreach over inputs, literals and results, with and without a limit, at any depth, when blocks,
catches, always blocks, mixins, implicits, instances of schemas, yields to every enclosing
facet, sys.log, sys.assert, and arithmetic that may fail. References go only to what was written
before, so there is no cycle; then the statements are shuffled, so that the text has forward
references all the same.

A program is drawn from a seed and a size. Hypothesis, left to draw each word by itself,
writes mostly trivial ones; it still finds a small example of what it breaks, by the size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.triggers import Failed, Lost, Outcome, Succeeded
from tests.builders import (
    Node,
    after,
    always,
    block,
    case,
    catching,
    catching_when,
    check,
    default,
    event,
    facet,
    given,
    implicit,
    item,
    listed,
    log,
    mixed,
    of,
    op,
    program,
    schema,
    signed,
    step,
    to,
    when,
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
    failing: int  #: percentage of answers that are failures
    silent: int  #: percentage of answers that are never given

    def answer(self, task: TaskDefinition) -> Outcome | None:
        """The outcome of a task: deterministic by its content."""
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
    """The names that may be used at one place."""

    numbers: list[Node] = field(default_factory=list)
    lists: list[Node] = field(default_factory=list)
    targets: tuple[str, ...] = ()  #: facets that a yield may go to
    depth: int = 0

    def inside(self, target: str) -> Scope:
        targets = tuple(dict.fromkeys((*self.targets, target)))
        return Scope([*self.numbers], [*self.lists], targets, self.depth + 1)

    def deeper(self) -> Scope:
        return Scope([*self.numbers], [*self.lists], self.targets, self.depth + 1)

    def copy(self) -> Scope:
        return Scope([*self.numbers], [*self.lists], self.targets, self.depth)


class Writer:
    """Writes one program."""

    def __init__(self, seed: int, size: int) -> None:
        self._random = Random(seed)
        self._size = size  #: how many statements a block has at most
        self._left = 6 * size  #: how many calls may still be written
        self._numbers = count(1)
        #: The facets that may be called so far, by weight.
        self.callables = ["E", "E", "E", "E", "R", "R", "N", "S"]
        self.mixing: set[str] = set()  #: those with a mixin in their signature

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
            foreach, clause = None, {}
            if self._chance(20):
                blocks.append(when(*self.cases(seen), first=self._chance(30)))
                continue
            if self._chance(40):
                variable = f"i{next(self._numbers)}"
                foreach = (variable, self.items(seen))
                if self._chance(30):
                    clause["limit"] = self._one(1, 1, 2, op(1, "*", self.number(seen)))
                if self._chance(30):
                    clause["collect_errors"] = True
                inner.numbers.append(given(variable))
            statements = self.statements(inner)
            blocks.append(block(*statements, yields=self.yields(inner), foreach=foreach, **clause))
            if foreach is None:
                seen = inner  # later blocks see the steps of earlier ones
        return blocks

    def yields(self, scope: Scope) -> list[Node]:
        return [self.yielded(scope) for _ in self._many(2)] if scope.targets else []

    def cases(self, scope: Scope) -> list[Node]:
        found = []
        for _ in range(self._one(1, 2, 2, 3)):
            inner = scope.copy()
            statements = self.statements(inner)
            found.append(case(self.condition(scope), *statements, yields=self.yields(inner)))
        if self._chance(70):
            inner = scope.copy()
            found.append(default(*self.statements(inner), yields=self.yields(inner)))
        return found

    def condition(self, scope: Scope) -> Node:
        return op(self.number(scope), self._one("<=", "<", "!=", "=="), self.number(scope))

    def with_catch(self, node: Node, scope: Scope, error: Node) -> Node:
        """Add a catch, of steps or of cases."""
        logged = [log(error=error)] if self._chance(30) else []
        if self._chance(40):
            return catching_when(node, *self.cases(scope), first=self._chance(30))
        inner = scope.copy()
        return catching(node, *self.statements(inner), *logged, yields=self.yields(inner))

    def statements(self, scope: Scope) -> list[Node]:
        written: list[Node] = []
        most = min(self._left, max(1, self._size - scope.depth))
        for _ in range(self._random.randint(0 if scope.depth else most // 2, most)):
            if self._chance(15):
                checked = check(self.condition(scope))
                written.append(checked if self._chance(60) else log(n=self.number(scope)))
            elif self._left > 0:
                self._left -= 1
                called = self.call(scope)
                earlier = [each["name"] for each in written if "name" in each]
                if earlier and self._chance(20):
                    on = self._one("completed", "ended")
                    called = after(called, {"step": self._one(*earlier), "on": on})
                written.append(called)
        self._random.shuffle(written)
        return written

    def call(self, scope: Scope) -> Node:
        target = self._one(*self.callables)
        name = f"s{next(self._numbers)}"
        arguments = {"a": self.number(scope)}
        if self._chance(40):
            arguments["xs"] = self.items(scope)
        body: list[Node] = []
        inner = scope.inside(target) if target != "S" else scope.deeper()
        inner.numbers += [given("a"), of(f"{name}.a")]
        inner.lists.append(given("xs"))
        if target in ("E", "R", "B"):
            inner.numbers.append(of(f"{name}.v"))
            inner.lists.append(of(f"{name}.l"))
        if target in self.mixing:
            inner.numbers += [given("mx.v"), of(f"{name}.mx.a")]
        if target != "S" and scope.depth < 2 and self._chance(30):
            body = self.body(inner.copy())
        written = step(name, target, *body, **arguments)
        later = [of(f"{name}.mx.v")] if target in self.mixing else []
        if target != "S" and self._chance(10):
            written = mixed(written, "Anything", a=self.number(scope), xs=self.items(scope))
        if target != "S" and self._chance(10):
            written = mixed(written, "N", "m", a=self.number(scope))
            inner.numbers.append(given("m.a"))
            later.append(of(f"{name}.m.a"))
        if scope.depth < 2 and self._chance(25):
            written = self.with_catch(
                written, inner, self._one(given("error"), of(f"{name}.error"))
            )
        if scope.depth < 2 and self._chance(15):
            # It yields nothing, and blocks inside it yield only to their own steps.
            closing = Scope([*inner.numbers], [*inner.lists], (), inner.depth)
            logged = [log(error=of(f"{name}.error_type"))] if self._chance(30) else []
            written = always(written, *self.statements(closing), *logged)
        scope.numbers += [of(f"{name}.a"), *later]
        scope.lists.append(of(f"{name}.xs"))
        if target not in ("N", "S"):
            # Twice: results are what a program is about.
            scope.numbers += [of(f"{name}.v")] * 2
            scope.lists += [of(f"{name}.l")] * 2
        return written

    def yielded(self, scope: Scope) -> Node:
        target = self._one(*scope.targets)
        attributes: dict[str, Any] = {}
        if self._chance(70):
            attributes["v"] = self.number(scope)
        if self._chance(60) or not attributes:
            attributes["l"] = self.items(scope)
        return to(target, **attributes)

    def facet(self, make: Callable[..., Node], name: str) -> Node:
        scope = Scope([given("a")], [given("xs")], (name,), 0 if name == "W" else 2)
        mixes = self._chance(25)
        if mixes:
            scope.numbers += [given("mx.a"), given("mx.v")]
            scope.targets = (name, "mx")
        declared = make(name, PARAMS, RETURNS, *self.body(scope.copy()))
        if mixes:
            self.mixing.add(name)
            declared = signed(declared, self._one("E", "R"), "mx", a=given("a"))
        if self._chance(25):
            declared = self.with_catch(declared, scope, given("error_path"))
        return declared

    def program(self) -> Node:
        declared = [
            event("E", PARAMS, RETURNS),
            event("R", PARAMS, RETURNS, options={"retry": {"attempts": 2}, "max_losses": 1}),
            facet("N", PARAMS, RETURNS),
            schema("S", PARAMS),
        ]
        if self._chance(20):
            declared.append(implicit("R", xs=[3]))
        for name, make in (("B", event), ("P", facet), ("V", workflow)):
            if self._chance(50):
                declared.append(self.facet(make, name))
                self.callables += [name, name]
        return program(*declared, self.facet(workflow, "W"))


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
    kind = node["type"].removesuffix("Decl")
    if kind == "Implicit":
        yield f"implicit {_call(node['call'])}"
        return
    params = ", ".join(p["name"] for p in node.get("params", node.get("fields", ())))
    mixins = "".join(_mixin(mixin) for mixin in node.get("mixins", ()))
    options = node.get("options") or ""
    yield f"{kind} {node['name']}({params}){mixins} {options}".rstrip()
    yield from _body(node.get("body", []), "  ")
    yield from _catch(node, "  ")


def _mixin(node: Node) -> str:
    return f" with {_call(node)}" + (f" as {node['alias']}" if node["alias"] else "")


def _catch(node: Node, indent: str) -> Iterator[str]:
    if "catch" in node:
        yield f"{indent}catch"
        yield from _contents(node["catch"], f"{indent}  ")


def _body(blocks: list[Node], indent: str) -> Iterator[str]:
    for node in blocks:
        foreach = node.get("foreach")
        over = f" foreach {foreach['variable']} in {_value(foreach['iterable'])}" if foreach else ""
        if foreach and "limit" in foreach:
            over += f" limit {_value(foreach['limit'])}"
        if foreach and "collect_errors" in foreach:
            over += " collecting errors"
        yield f"{indent}andThen{over}"
        yield from _contents(node, f"{indent}  ")


def _contents(node: Node, indent: str) -> Iterator[str]:
    if "when" in node:
        yield f"{indent}when {node['when'].get('match', '')}".rstrip()
        for one in node["when"]["cases"]:
            condition = _value(one["condition"]) if "condition" in one else "_"
            yield f"{indent}  case {condition}"
            yield from _contents(one, f"{indent}    ")
        return
    for statement in node["steps"]:
        yield from _statement(statement, indent)
    for yielded in node["yields"]:
        yield f"{indent}yield {_call(yielded['call'])}"


def _statement(node: Node, indent: str) -> Iterator[str]:
    match node["type"]:
        case "SysAssertStmt":
            yield f"{indent}sys.assert({_value(node['condition'])})"
        case "SysLogStmt":
            yield f"{indent}sys.log({_arguments(node['args'])})"
        case _:
            mixins = "".join(_mixin(mixin) for mixin in node["call"].get("mixins", ()))
            yield f"{indent}{node['name']} = {_call(node['call'])}{mixins}"
            yield from _body(node["body"], f"{indent}  ")
            yield from _catch(node, f"{indent}  ")
            if "always" in node:
                yield f"{indent}  always"
                yield from _contents(node["always"], f"{indent}    ")


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
