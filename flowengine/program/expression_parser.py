"""Read expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flowengine.program.json_reader import Places, kind_of
from flowengine.program.nodes import (
    BINARY_OPERATORS,
    UNARY_OPERATORS,
    ArrayLiteral,
    Binary,
    Concat,
    Expression,
    Index,
    InputRef,
    Json,
    Literal,
    MapLiteral,
    StepRef,
    Unary,
)

_LITERALS: dict[str, tuple[type, ...]] = {
    "String": (str,),
    "Int": (int,),
    "Double": (int, float),
    "Boolean": (bool,),
}


class ExpressionReader(Places):
    """Reads what has a value."""

    def _expression(self, node: Json) -> Expression:
        if isinstance(node, list):
            return ArrayLiteral(self._each(node, self._expression))
        if not isinstance(node, dict):
            return self._finite(Literal(node))
        kind = node.get("type")
        match kind:
            case "Null":
                return Literal(None)
            case "String" | "Int" | "Boolean" | "Double":
                return self._literal(kind, node)
            case "InputRef":
                return InputRef(self._path(node))
            case "StepRef":
                return StepRef(self._path(node))
            case "ConcatExpr":
                return Concat(self._each(self._list(node, "operands"), self._expression))
            case "BinaryExpr":
                left, right = (
                    self._expression(node.get("left")),
                    self._expression(node.get("right")),
                )
                return Binary(self._operator(node, BINARY_OPERATORS), left, right)
            case "UnaryExpr":
                operand = self._expression(node.get("operand"))
                return Unary(self._operator(node, UNARY_OPERATORS), operand)
            case "ArrayLiteral":
                return ArrayLiteral(self._each(self._list(node, "elements"), self._expression))
            case "MapLiteral":
                return MapLiteral(self._each(self._list(node, "entries"), self._entry))
            case "IndexExpr":
                return Index(
                    self._expression(node.get("target")), self._expression(node.get("index"))
                )
        self._problem(f"unknown expression node {kind!r}")
        return Literal(None)

    def _literal(self, kind: str, node: Mapping[str, Any]) -> Literal:
        value = node.get("value")
        if not isinstance(value, _LITERALS[kind]) or (
            kind != "Boolean" and isinstance(value, bool)
        ):
            self._problem(f"{kind} literal holds {kind_of(value)}")
        return self._finite(Literal(value))

    def _finite(self, literal: Literal) -> Literal:
        if isinstance(literal.value, float) and not math.isfinite(literal.value):
            self._problem(f"{literal.value} is not a number that JSON can write")
        return literal

    def _path(self, node: Mapping[str, Any]) -> tuple[str, ...]:
        path = self._list(node, "path")
        if not path or not all(isinstance(part, str) and part for part in path):
            self._problem(f"{node.get('type')} needs a path of names, found {path!r}")
            return ("?",)
        return tuple(path)

    def _operator(self, node: Mapping[str, Any], known: frozenset[str]) -> str:
        operator = node.get("operator")
        if isinstance(operator, str) and operator in known:
            return operator
        self._problem(f"unknown operator {operator!r}")
        return "+"

    def _entry(self, child: Json) -> tuple[str, Expression]:
        node = self._object(child, "an entry of a map")
        return self._text({"type": "a map entry", **node}, "key"), self._expression(
            node.get("value")
        )
