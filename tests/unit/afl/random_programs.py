"""Random programs that parse: their names, types and arguments may be right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

_NAMES = ("a", "b", "c", "x", "y", "e", "s1", "s2")
_FACETS = ("F", "G", "F1", "F2", "Spot", "W")
_SPACES = ("n", "m", "n.deep")
_TYPES = ("Long", "String", "[Long]", "[[Json]]", "Spot", "n.Spot", "F1", "Lnog", "Nope")
_OPERATORS = ("+", "-", "*", "/", "%", "==", "!=", ">", "&&", "||", "++", "in", "contains")
_LITERALS = ("1", '"text"', "null", "true", "2.5")
_WRONG_VALUES = ("$.nope", "nobody.y", "$.a.b.c", "1 / 0")

Scope = Sequence[str]  #: the values that can be read


class RandomProgram:
    """Writes the text of one program; in some, all is right, in others a part is drawn wrong."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._wrong = self._random.choice((0.0, 0.0, 0.01, 0.1, 0.5))
        self._facets: list[tuple[str, list[str], list[str]]] = []  #: name, parameters, returns
        self._spaces = self._some(_SPACES, 1)
        self._count = 0

    def text(self) -> str:
        spaces = [self._space(name) for name in self._spaces]
        return "\n".join([*spaces, *(self._declaration() for _ in range(self._number(2)))])

    def _space(self, name: str) -> str:
        used = [self._pick(self._spaces, "gone") for _ in range(self._number(1))]
        inner = "\n".join(self._declaration() for _ in range(1 + self._number(4)))
        return f"namespace {name} {{\n{''.join(f'use {u};' for u in used)}\n{inner}\n}}"

    def _declaration(self) -> str:
        if self._is_wrong():
            return f"schema Spot {{ {', '.join(self._field(n) for n in self._fields())} }}"
        if self._is_wrong() and self._facets:
            return f"implicit {self._new('i')} = {self._call([])[0]}"
        return self._facet(self._random.choice(("facet", "event facet", "workflow")))

    def _facet(self, kind: str) -> str:
        name = self._pick([self._new("F")], *_FACETS)
        params, returns = self._fields(), self._fields()
        scope = [f"$.{param}" for param in params]
        default = " = 1" if self._random.random() < 0.3 else ""
        text = f"{kind} {name}({', '.join(self._field(p) + default for p in params)})"
        text += f" => ({', '.join(self._field(r) for r in returns)})" if returns else ""
        text += "".join(self._mixin(scope) for _ in range(self._number(1)))
        if kind != "event facet" or self._random.random() < 0.2:
            blocks = (self._block(2, name, returns, scope) for _ in range(self._number(2)))
            text += "".join(blocks)
        if self._random.random() < 0.2:
            text += f" catch {self._contents(1, name, returns, scope)}"
        self._facets.append((name, params, returns))
        return text

    def _fields(self) -> list[str]:
        names = self._some(_NAMES, 0)
        return [*names, *names[:1]] if self._is_wrong() else names

    def _field(self, name: str) -> str:
        return f"{name}: {self._pick(['Json'], *_TYPES)}"

    def _mixin(self, scope: Scope) -> str:
        if self._random.random() < 0.3 or not self._facets:
            return " with Timeout(minutes = 1)"
        alias = self._pick([self._new("m")], *_NAMES)
        return f" with {self._call(scope)[0]} as {alias}"

    def _call(self, scope: Scope) -> tuple[str, list[str]]:
        """A call of a facet that stands above, and what can be read of its step."""
        name, params, returns = self._random.choice(self._facets)
        given = [p for p in params if not self._is_wrong()]
        given += [self._random.choice(_NAMES)] if self._is_wrong() else []
        called = self._pick([name], f"{self._random.choice(_SPACES)}.{name}", "Nope", *_FACETS)
        arguments = ", ".join(f"{p} = {self._value(2, scope)}" for p in given)
        return f"{called}({arguments})", [*params, *returns]

    def _block(self, depth: int, facet: str, returns: list[str], scope: Scope) -> str:
        match self._random.randrange(4):
            case 0:
                item = self._random.choice(_NAMES)
                inner = self._contents(depth, facet, returns, [*scope, f"$.{item}"])
                return f" andThen foreach {item} in {self._value(1, scope)} {inner}"
            case 1:
                one, other = (self._contents(depth, facet, returns, scope) for _ in range(2))
                condition = self._value(1, scope)
                return f" andThen when {{ case {condition} => {one} case _ => {other} }}"
        return f" andThen {self._contents(depth, facet, returns, scope)}"

    def _contents(self, depth: int, facet: str, returns: list[str], scope: Scope) -> str:
        lines, readable = [], list(scope)
        for _ in range(self._number(3) if self._facets else 0):
            lines.append(self._step(depth, facet, returns, readable))
        if self._random.random() < 0.2:
            lines.append(f"sys.log(said = {self._value(1, readable)})")
        for _ in range(self._number(2)):
            target = self._pick([facet], *_FACETS, *_NAMES)
            names = [self._pick([name], *_NAMES) for name in returns]
            given = ", ".join(f"{name} = {self._value(2, readable)}" for name in names)
            mixin = f" with {self._random.choice(_FACETS)}(a = 1)" if self._is_wrong() else ""
            lines.append(f"yield {target}({given}){mixin}")
        return "{\n" + "\n".join(lines) + "\n}"

    def _step(self, depth: int, facet: str, returns: list[str], readable: list[str]) -> str:
        name = self._pick([self._new("t")], *_NAMES)
        call, attributes = self._call(readable)
        text = f"{name} = {call}"
        text += "".join(self._mixin(readable) for _ in range(self._number(1)))
        own = [*readable, *(f"{name}.{attribute}" for attribute in attributes)]
        if depth and self._random.random() < 0.3:
            text += self._block(depth - 1, facet, returns, own)
        if depth and self._random.random() < 0.2:
            text += f" catch {self._contents(depth - 1, facet, returns, own)}"
        readable[:] = own
        return text

    def _value(self, depth: int, scope: Scope) -> str:
        if depth == 0 or self._random.random() < 0.5:
            return self._pick([*_LITERALS, *scope, *scope], *_WRONG_VALUES)
        one, other = self._value(depth - 1, scope), self._value(depth - 1, scope)
        shapes = (f"[{one}, {other}]", f"#{{k: {one}, l: {other}}}", f"({one})[{other}]", f"!{one}")
        operation = f"({one} {self._random.choice(_OPERATORS)} {other})"
        return self._random.choice((*shapes, operation))

    def _new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _is_wrong(self) -> bool:
        return self._random.random() < self._wrong

    def _pick(self, right: Sequence[str], *wrong: str) -> str:
        return self._random.choice(wrong if self._is_wrong() else right)

    def _number(self, usual: int) -> int:
        return self._random.randrange(usual + 1) if self._random.random() < 0.9 else usual * 2

    def _some(self, names: Sequence[str], least: int) -> list[str]:
        return self._random.sample(names, self._random.randint(least, 3))
