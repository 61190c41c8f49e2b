"""Read blocks and statements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowengine.program.expression_parser import ExpressionReader
from flowengine.program.json_reader import is_count, location_of
from flowengine.program.nodes import (
    Argument,
    AssertStatement,
    Block,
    Call,
    CatchClause,
    ForeachClause,
    Json,
    Literal,
    LogStatement,
    Mixin,
    PromptBlock,
    ScriptBlock,
    Statement,
    StepStatement,
    WhenCase,
    YieldStatement,
)


class BlockReader(ExpressionReader):
    """Reads what is done."""

    def _body(self, node: Json) -> tuple[Block, ...]:
        if node is None:
            return ()
        return self._each(node if isinstance(node, list) else [node], self._block)

    def _block(self, child: Json) -> Block:
        node = self._object(child, "a block")
        if node.get("type") == "ScriptBlock":
            return Block(script=self._script(node), location=location_of(node))
        if node.get("type") == "PromptBlock":
            self._problem("a prompt block can only be the body of an event facet")
            return Block()
        if node and node.get("type") != "AndThenBlock":
            self._problem(f"unknown kind of block {node.get('type')!r}")
        foreach, when = node.get("foreach"), node.get("when")
        block = Block(
            self._statements(node),
            self._yields(node),
            foreach=self._foreach(foreach) if foreach else None,
            cases=self._cases(when) if when else (),
            script=self._script(node["script"]) if node.get("script") else None,
            first_match=self._first_match(when) if when else False,
            location=location_of(node),
        )
        content = bool(block.statements or block.yields or foreach)
        if sum((content, bool(block.cases), block.script is not None)) > 1:
            self._problem("a block is made of steps, of cases or of a script, not of several")
        return block

    def _foreach(self, child: Json) -> ForeachClause:
        node = self._object(child, "a ForeachClause")
        with self._inside("foreach"):
            limit = None if node.get("limit") is None else self._expression(node["limit"])
            if isinstance(limit, Literal) and not is_count(limit.value):
                self._problem("'limit' must be a whole number of at least 1")
            return ForeachClause(
                self._text(node, "variable"),
                self._expression(node.get("iterable")),
                limit,
                self._truth(node, "collect_errors"),
            )

    def _cases(self, child: Json) -> tuple[WhenCase, ...]:
        node = self._object(child, "a WhenBlock")
        with self._inside("when"):
            cases = self._each(self._list(node, "cases"), self._case)
            if not cases:
                self._problem("needs at least one case")
            if sum(1 for case in cases if case.condition is None) > 1:
                self._problem("has more than one default")
            return cases

    def _first_match(self, child: Json) -> bool:
        match = child.get("match") if isinstance(child, dict) else None
        if match not in (None, "first"):
            with self._inside("when"):
                self._problem(f"'match' can only be 'first', found {match!r}")
        return match == "first"

    def _case(self, child: Json) -> WhenCase:
        node = self._object(child, "a WhenCase")
        is_default = self._truth(node, "default")
        if not is_default and "condition" not in node:
            self._problem("a WhenCase needs a condition, or must be the default")
        condition = None if is_default else self._expression(node.get("condition"))
        return WhenCase(condition, self._statements(node), self._yields(node))

    def _catch(self, child: Json) -> CatchClause:
        node = self._object(child, "a CatchClause")
        with self._inside("catch"):
            when = node.get("when")
            cases = self._cases(when) if when else ()
            statements, yields = self._statements(node), self._yields(node)
            if cases and (statements or yields):
                self._problem("a catch is made of steps or of cases, not of both")
            return CatchClause(
                statements, yields, cases, self._first_match(when) if when else False
            )

    def _script(self, child: Json) -> ScriptBlock:
        node = self._object(child, "a ScriptBlock")
        return ScriptBlock(self._text(node, "language", default="python"), self._text(node, "code"))

    def _prompt(self, child: Json) -> PromptBlock:
        node = self._object(child, "a PromptBlock")
        return PromptBlock(
            *(self._text(node, key, default="") for key in ("system", "template", "model"))
        )

    def _statements(self, node: Mapping[str, Any]) -> tuple[Statement, ...]:
        found = (self._statement(child) for child in self._list(node, "steps"))
        return tuple(statement for statement in found if statement is not None)

    def _statement(self, child: Json) -> Statement | None:
        node = self._object(child, "a statement")
        match node.get("type"):
            case "StepStmt":
                name = self._text(node, "name")
                with self._inside(f"step {name!r}"):
                    catch = self._catch(node["catch"]) if node.get("catch") else None
                    call, body = self._call(node.get("call")), self._body(node.get("body"))
                    with self._inside("always"):
                        always = self._body(node.get("always"))
                    return StepStatement(name, call, body, catch, always, location_of(node))
            case "SysLogStmt":
                with self._inside("sys.log"):
                    arguments = self._each(self._list(node, "args"), self._argument)
                    return LogStatement(arguments, location_of(node))
            case "SysAssertStmt":
                with self._inside("sys.assert"):
                    return AssertStatement(
                        self._expression(node.get("condition")), location_of(node)
                    )
        self._problem(f"unknown kind of statement {node.get('type')!r}")
        return None

    def _yields(self, node: Mapping[str, Any]) -> tuple[YieldStatement, ...]:
        one = [node["yield"]] if node.get("yield") else []
        return self._each(one + self._list(node, "yields"), self._yield)

    def _yield(self, child: Json) -> YieldStatement:
        node = self._object(child, "a YieldStmt")
        with self._inside("yield"):
            return YieldStatement(self._call(node.get("call")), location_of(node))

    def _call(self, child: Json) -> Call:
        node = self._object(child, "a CallExpr")
        return Call(
            self._text({"type": "a call", **node}, "target"),
            self._each(self._list(node, "args"), self._argument),
            self._each(self._list(node, "mixins"), self._mixin),
        )

    def _argument(self, child: Json) -> Argument:
        node = self._object(child, "an argument")
        name = self._text({"type": "an argument", **node}, "name")
        with self._inside(f"argument {name!r}"):
            return Argument(name, self._expression(node.get("value")))

    def _mixin(self, child: Json) -> Mixin:
        node = self._object(child, "a mixin")
        return Mixin(
            self._text(node, "target"),
            self._each(self._list(node, "args"), self._argument),
            self._text(node, "alias", default=""),
        )
