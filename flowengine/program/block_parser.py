"""Parse blocks and statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowengine.program import nodes
from flowengine.program.expression_parser import ExpressionParser
from flowengine.program.json_reader import DocumentReader, is_count, location_of
from flowengine.program.nodes import Json


class BlockParser:
    """Parses blocks and statements."""

    def __init__(self, json: DocumentReader, expressions: ExpressionParser) -> None:
        self._json, self._expressions = json, expressions

    def body(self, node: Json) -> tuple[nodes.Block, ...]:
        if node is None:
            return ()
        blocks = node if isinstance(node, list) else [node]
        return tuple(self._block(child) for child in blocks)

    def _block(self, child: Json) -> nodes.Block:
        node = self._json.mapping(child, "a block")
        if node.get("type") == "ScriptBlock":
            return nodes.Block(script=self.script(node), location=location_of(node))
        if node.get("type") == "PromptBlock":
            self._json.problem("a prompt block can only be the body of an event facet")
            return nodes.Block()
        if node and node.get("type") != "AndThenBlock":
            self._json.problem(f"unknown kind of block {node.get('type')!r}")
        foreach, when = node.get("foreach"), node.get("when")
        block = nodes.Block(
            self._statements(node),
            self._yields(node),
            foreach=self._foreach(foreach) if foreach else None,
            cases=self._cases(when) if when else (),
            script=self.script(node["script"]) if node.get("script") else None,
            first_match=self._first_match(when) if when else False,
            location=location_of(node),
        )
        content = bool(block.statements or block.yields or foreach)
        if sum((content, bool(block.cases), block.script is not None)) > 1:
            self._json.problem("a block is made of steps, of cases or of a script, not of several")
        return block

    def _foreach(self, child: Json) -> nodes.ForeachClause:
        node = self._json.mapping(child, "a ForeachClause")
        with self._json.inside("foreach"):
            limit = None if node.get("limit") is None else self._expressions.parse(node["limit"])
            if isinstance(limit, nodes.Literal) and not is_count(limit.value):
                self._json.problem("'limit' must be a whole number of at least 1")
            return nodes.ForeachClause(
                self._json.text(node, "variable"),
                self._expressions.parse(node.get("iterable")),
                limit,
                self._json.truth(node, "collect_errors"),
            )

    def _cases(self, child: Json) -> tuple[nodes.WhenCase, ...]:
        node = self._json.mapping(child, "a WhenBlock")
        with self._json.inside("when"):
            cases = self._json.each(node, "cases", self._case)
            if not cases:
                self._json.problem("needs at least one case")
            if sum(1 for case in cases if case.condition is None) > 1:
                self._json.problem("has more than one default")
            return cases

    def _first_match(self, child: Json) -> bool:
        match = child.get("match") if isinstance(child, dict) else None
        if match not in (None, "first"):
            with self._json.inside("when"):
                self._json.problem(f"'match' can only be 'first', found {match!r}")
        return match == "first"

    def _case(self, child: Json) -> nodes.WhenCase:
        node = self._json.mapping(child, "a WhenCase")
        is_default = self._json.truth(node, "default")
        if not is_default and "condition" not in node:
            self._json.problem("a WhenCase needs a condition, or must be the default")
        condition = None if is_default else self._expressions.parse(node.get("condition"))
        return nodes.WhenCase(condition, self._statements(node), self._yields(node))

    def catch(self, child: Json) -> nodes.CatchClause:
        node = self._json.mapping(child, "a CatchClause")
        with self._json.inside("catch"):
            when = node.get("when")
            cases = self._cases(when) if when else ()
            statements, yields = self._statements(node), self._yields(node)
            if cases and (statements or yields):
                self._json.problem("a catch is made of steps or of cases, not of both")
            return nodes.CatchClause(
                statements, yields, cases, self._first_match(when) if when else False
            )

    def script(self, child: Json) -> nodes.ScriptBlock:
        node = self._json.mapping(child, "a ScriptBlock")
        return nodes.ScriptBlock(
            self._json.text(node, "language", default="python"), self._json.text(node, "code")
        )

    def prompt(self, child: Json) -> nodes.PromptBlock:
        node = self._json.mapping(child, "a PromptBlock")
        return nodes.PromptBlock(
            *(self._json.text(node, key, default="") for key in ("system", "template", "model"))
        )

    def _statements(self, node: Mapping[str, Any]) -> tuple[nodes.Statement, ...]:
        statements = self._json.each(node, "steps", self._statement)
        return tuple(statement for statement in statements if statement is not None)

    def _statement(self, child: Json) -> nodes.Statement | None:
        node = self._json.mapping(child, "a statement")
        match node.get("type"):
            case "StepStmt":
                name = self._json.text(node, "name")
                with self._json.inside(f"step {name!r}"):
                    catch = self.catch(node["catch"]) if node.get("catch") else None
                    call, body = self.call(node.get("call")), self.body(node.get("body"))
                    with self._json.inside("always"):
                        always = self.body(node.get("always"))
                    return nodes.StepStatement(name, call, body, catch, always, location_of(node))
            case "SysLogStmt":
                with self._json.inside("sys.log"):
                    arguments = self._json.each(node, "args", self.argument)
                    return nodes.LogStatement(arguments, location_of(node))
            case "SysAssertStmt":
                with self._json.inside("sys.assert"):
                    return nodes.AssertStatement(
                        self._expressions.parse(node.get("condition")), location_of(node)
                    )
        self._json.problem(f"unknown kind of statement {node.get('type')!r}")
        return None

    def _yields(self, node: Mapping[str, Any]) -> tuple[nodes.YieldStatement, ...]:
        one = [node["yield"]] if node.get("yield") else []
        return tuple(self._yield(child) for child in one + self._json.elements(node, "yields"))

    def _yield(self, child: Json) -> nodes.YieldStatement:
        node = self._json.mapping(child, "a YieldStmt")
        with self._json.inside("yield"):
            return nodes.YieldStatement(self.call(node.get("call")), location_of(node))

    def call(self, child: Json) -> nodes.Call:
        node = self._json.mapping(child, "a CallExpr")
        return nodes.Call(
            self._json.text({"type": "a call", **node}, "target"),
            self._json.each(node, "args", self.argument),
            self._json.each(node, "mixins", self.mixin),
        )

    def argument(self, child: Json) -> nodes.Argument:
        node = self._json.mapping(child, "an argument")
        name = self._json.text({"type": "an argument", **node}, "name")
        with self._json.inside(f"argument {name!r}"):
            return nodes.Argument(name, self._expressions.parse(node.get("value")))

    def mixin(self, child: Json) -> nodes.Mixin:
        node = self._json.mapping(child, "a mixin")
        return nodes.Mixin(
            self._json.text(node, "target"),
            self._json.each(node, "args", self.argument),
            self._json.text(node, "alias", default=""),
        )
