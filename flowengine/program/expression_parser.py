"""Parse expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flowengine.program import nodes
from flowengine.program.json_reader import DocumentReader, kind_of
from flowengine.program.nodes import Json

_LITERALS: dict[str, tuple[type, ...]] = {
    "String": (str,),
    "Int": (int,),
    "Double": (int, float),
    "Boolean": (bool,),
}


class ExpressionParser:
    """Parses expressions."""

    def __init__(self, reader: DocumentReader) -> None:
        self._reader = reader

    def expression(self, node: Json) -> nodes.Expression:
        if isinstance(node, list):
            return nodes.ArrayLiteral(tuple(self.expression(child) for child in node))
        if not isinstance(node, dict):
            return self._finite(nodes.Literal(node))
        kind = node.get("type")
        match kind:
            case "Null":
                return nodes.Literal(None)
            case "String" | "Int" | "Boolean" | "Double":
                return self._literal(kind, node)
            case "InputRef":
                return nodes.InputRef(self._path(node))
            case "StepRef":
                return nodes.StepRef(self._path(node))
            case "ConcatExpr":
                return nodes.Concat(self._reader.each(node, "operands", self.expression))
            case "BinaryExpr":
                left, right = self.expression(node.get("left")), self.expression(node.get("right"))
                return nodes.Binary(self._operator(node, nodes.BINARY_OPERATORS), left, right)
            case "UnaryExpr":
                operand = self.expression(node.get("operand"))
                return nodes.Unary(self._operator(node, nodes.UNARY_OPERATORS), operand)
            case "ArrayLiteral":
                return nodes.ArrayLiteral(self._reader.each(node, "elements", self.expression))
            case "MapLiteral":
                return nodes.MapLiteral(self._reader.each(node, "entries", self._entry))
            case "IndexExpr":
                return nodes.Index(
                    self.expression(node.get("target")), self.expression(node.get("index"))
                )
        self._reader.problem(f"unknown expression node {kind!r}")
        return nodes.Literal(None)

    def _literal(self, kind: str, node: Mapping[str, Any]) -> nodes.Literal:
        value = node.get("value")
        if not isinstance(value, _LITERALS[kind]) or (
            kind != "Boolean" and isinstance(value, bool)
        ):
            self._reader.problem(f"{kind} literal holds {kind_of(value)}")
        return self._finite(nodes.Literal(value))

    def _finite(self, literal: nodes.Literal) -> nodes.Literal:
        if isinstance(literal.value, float) and not math.isfinite(literal.value):
            self._reader.problem(f"{literal.value} is not a number that JSON can write")
        return literal

    def _path(self, node: Mapping[str, Any]) -> tuple[str, ...]:
        path = self._reader.elements(node, "path")
        if not path or not all(isinstance(part, str) and part for part in path):
            self._reader.problem(f"{node.get('type')} needs a path of names, found {path!r}")
            return ("?",)
        return tuple(path)

    def _operator(self, node: Mapping[str, Any], known: frozenset[str]) -> str:
        operator = node.get("operator")
        if isinstance(operator, str) and operator in known:
            return operator
        self._reader.problem(f"unknown operator {operator!r}")
        return "+"

    def _entry(self, child: Json) -> tuple[str, nodes.Expression]:
        node = self._reader.mapping(child, "an entry of a map")
        return self._reader.text({"type": "a map entry", **node}, "key"), self.expression(
            node.get("value")
        )
