"""Parse AFL program JSON, of both generations, into nodes.

The first generation lists declarations by category and repeats some of them under
``declarations``; the latest has ``declarations`` alone. A name that occurs again in the
category lists is the same declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowengine.errors import InvalidProgram
from flowengine.program import nodes
from flowengine.program.expression_parser import ExpressionParser
from flowengine.program.json_reader import DocumentReader, is_count, location_of
from flowengine.program.limits import DEFAULT_LIMITS, Limits, check_document, listed
from flowengine.program.nodes import Json
from flowengine.program.option_parser import OptionParser

_CATEGORIES = ("namespaces", "facets", "eventFacets", "workflows", "implicits", "schemas")


def parse_program(document: Json, limits: Limits = DEFAULT_LIMITS) -> nodes.Program:
    """Return the program of a JSON document, or raise all its problems at once."""
    check_document(document, limits)
    reader = DocumentReader()
    try:
        program = ProgramParser(reader).parse(document)
    except RecursionError:
        raise InvalidProgram([reader.nested_too_deeply()]) from None
    if reader.problems:
        raise InvalidProgram(listed(reader.problems, limits.max_problems))
    return program


class ProgramParser:
    """Parses declarations, blocks and statements."""

    def __init__(self, reader: DocumentReader) -> None:
        self._reader = reader
        self._expressions, self._options = ExpressionParser(reader), OptionParser(reader)

    def parse(self, document: Json) -> nodes.Program:
        node = self._reader.mapping(document, "a Program")
        if isinstance(document, dict) and node.get("type") != "Program":
            self._reader.problem(f"expected a Program, found {node.get('type')!r}")
            return nodes.Program()
        return nodes.Program(self._declarations(node))

    def _declarations(self, node: Mapping[str, Any]) -> tuple[nodes.Declaration, ...]:
        listed = [*self._reader.elements(node, "declarations")]
        seen = {_identity(child) for child in listed}
        for category in _CATEGORIES:
            listed += [c for c in self._reader.elements(node, category) if _identity(c) not in seen]
        declarations = (self._declaration(child) for child in listed)
        return tuple(declaration for declaration in declarations if declaration is not None)

    def _declaration(self, child: Json) -> nodes.Declaration | None:
        node = self._reader.mapping(child, "a declaration")
        kind, name = node.get("type"), node.get("name")
        with self._reader.inside(str(name or "a declaration without name")):
            if not isinstance(name, str) or not name:
                self._reader.problem(f"a {kind} needs a name")
                return None
            match kind:
                case "Namespace":
                    uses = tuple(str(used) for used in self._reader.elements(node, "uses"))
                    inner = self._declarations(node)
                    return nodes.Namespace(name, uses, inner, location_of(node))
                case "FacetDecl" | "EventFacetDecl" | "WorkflowDecl":
                    return self._facet(nodes.FacetKind(kind), name, node)
                case "SchemaDecl":
                    fields = self._reader.each(node, "fields", self._field)
                    return nodes.SchemaDeclaration(name, fields, location_of(node))
                case "ImplicitDecl":
                    return nodes.ImplicitDeclaration(
                        name, self._call(node.get("call")), location_of(node)
                    )
            self._reader.problem(f"unknown kind of declaration {kind!r}")
            return None

    def _facet(
        self, kind: nodes.FacetKind, name: str, node: Mapping[str, Any]
    ) -> nodes.FacetDeclaration:
        body = node.get("body")
        prompt = isinstance(body, dict) and body.get("type") == "PromptBlock"
        return nodes.FacetDeclaration(
            kind,
            name,
            params=self._reader.each(node, "params", self._field),
            returns=self._reader.each(node, "returns", self._field),
            mixins=self._reader.each(node, "mixins", self._mixin),
            body=() if prompt else self._body(body),
            prompt=self._prompt(body) if prompt else None,
            pre_script=self._script(node["pre_script"]) if node.get("pre_script") else None,
            catch=self._catch(node["catch"]) if node.get("catch") else None,
            options=self._options.options(node["options"])
            if node.get("options")
            else nodes.EventOptions(),
            location=location_of(node),
            function=self._options.function(kind, name, node["function"])
            if "function" in node
            else None,
        )

    def _field(self, child: Json) -> nodes.Field:
        node = self._reader.mapping(child, "a parameter")
        name = self._reader.text({**node, "type": "a parameter"}, "name")
        with self._reader.inside(f"parameter {name!r}"):
            default = self._expressions.expression(node["default"]) if "default" in node else None
            type_ = self._type(node.get("type", "Json"))
            schema = node.get("schema")
            if schema is not None:
                schema = self._reader.mapping(schema, "a JSON Schema")
            return nodes.Field(name, type_, default, schema)

    def _type(self, node: Json) -> nodes.Type:
        if isinstance(node, str):
            return node
        if isinstance(node, dict) and node.get("type") == "ArrayType":
            return nodes.ArrayType(self._type(node.get("elementType", "Json")))
        self._reader.problem(f"unknown type {node!r}")
        return "Json"

    # --- blocks and statements ---

    def _body(self, node: Json) -> tuple[nodes.Block, ...]:
        if node is None:
            return ()
        blocks = node if isinstance(node, list) else [node]
        return tuple(self._block(child) for child in blocks)

    def _block(self, child: Json) -> nodes.Block:
        node = self._reader.mapping(child, "a block")
        if node.get("type") == "ScriptBlock":
            return nodes.Block(script=self._script(node), location=location_of(node))
        if node.get("type") == "PromptBlock":
            self._reader.problem("a prompt block can only be the body of an event facet")
            return nodes.Block()
        if node and node.get("type") != "AndThenBlock":
            self._reader.problem(f"unknown kind of block {node.get('type')!r}")
        foreach, when = node.get("foreach"), node.get("when")
        block = nodes.Block(
            self._statements(node),
            self._yields(node),
            foreach=self._foreach(foreach) if foreach else None,
            cases=self._cases(when) if when else (),
            script=self._script(node["script"]) if node.get("script") else None,
            first_match=self._first_match(when),
            location=location_of(node),
        )
        content = bool(block.statements or block.yields or foreach)
        if sum((content, bool(block.cases), block.script is not None)) > 1:
            self._reader.problem(
                "a block is made of steps, of cases or of a script, not of several"
            )
        return block

    def _foreach(self, child: Json) -> nodes.ForeachClause:
        node = self._reader.mapping(child, "a ForeachClause")
        with self._reader.inside("foreach"):
            limit = (
                None if node.get("limit") is None else self._expressions.expression(node["limit"])
            )
            if isinstance(limit, nodes.Literal) and not is_count(limit.value):
                self._reader.problem("'limit' must be a whole number of at least 1")
            return nodes.ForeachClause(
                self._reader.text(node, "variable"),
                self._expressions.expression(node.get("iterable")),
                limit,
                self._reader.truth(node, "collect_errors"),
            )

    def _cases(self, child: Json) -> tuple[nodes.WhenCase, ...]:
        node = self._reader.mapping(child, "a WhenBlock")
        with self._reader.inside("when"):
            cases = self._reader.each(node, "cases", self._case)
            if not cases:
                self._reader.problem("needs at least one case")
            if sum(1 for case in cases if case.condition is None) > 1:
                self._reader.problem("has more than one default")
            return cases

    def _first_match(self, child: Json) -> bool:
        match = child.get("match") if isinstance(child, dict) else None
        if match not in (None, "first"):
            with self._reader.inside("when"):
                self._reader.problem(f"'match' can only be 'first', found {match!r}")
        return match == "first"

    def _case(self, child: Json) -> nodes.WhenCase:
        node = self._reader.mapping(child, "a WhenCase")
        is_default = self._reader.truth(node, "default")
        if not is_default and "condition" not in node:
            self._reader.problem("a WhenCase needs a condition, or must be the default")
        condition = None if is_default else self._expressions.expression(node.get("condition"))
        return nodes.WhenCase(condition, self._statements(node), self._yields(node))

    def _catch(self, child: Json) -> nodes.CatchClause:
        node = self._reader.mapping(child, "a CatchClause")
        with self._reader.inside("catch"):
            when = node.get("when")
            cases = self._cases(when) if when else ()
            statements, yields = self._statements(node), self._yields(node)
            if cases and (statements or yields):
                self._reader.problem("a catch is made of steps or of cases, not of both")
            return nodes.CatchClause(statements, yields, cases, self._first_match(when))

    def _script(self, child: Json) -> nodes.ScriptBlock:
        node = self._reader.mapping(child, "a ScriptBlock")
        language = self._reader.text(node, "language", default="python")
        return nodes.ScriptBlock(language, self._reader.text(node, "code"))

    def _prompt(self, child: Json) -> nodes.PromptBlock:
        node = self._reader.mapping(child, "a PromptBlock")
        keys = ("system", "template", "model")
        return nodes.PromptBlock(*(self._reader.text(node, key, default="") for key in keys))

    def _statements(self, node: Mapping[str, Any]) -> tuple[nodes.Statement, ...]:
        statements = self._reader.each(node, "steps", self._statement)
        return tuple(statement for statement in statements if statement is not None)

    def _statement(self, child: Json) -> nodes.Statement | None:
        node = self._reader.mapping(child, "a statement")
        match node.get("type"):
            case "StepStmt":
                name = self._reader.text(node, "name")
                with self._reader.inside(f"step {name!r}"):
                    catch = self._catch(node["catch"]) if node.get("catch") else None
                    call, body = self._call(node.get("call")), self._body(node.get("body"))
                    with self._reader.inside("always"):
                        always = self._body(node.get("always"))
                    after = self._reader.each(node, "after", self._after)
                    at = location_of(node)
                    return nodes.StepStatement(name, call, body, catch, always, at, after)
            case "SysLogStmt":
                with self._reader.inside("sys.log"):
                    arguments = self._reader.each(node, "args", self._argument)
                    return nodes.LogStatement(arguments, location_of(node))
            case "SysAssertStmt":
                with self._reader.inside("sys.assert"):
                    condition = self._expressions.expression(node.get("condition"))
                    return nodes.AssertStatement(condition, location_of(node))
        self._reader.problem(f"unknown kind of statement {node.get('type')!r}")
        return None

    def _after(self, child: Json) -> nodes.After:
        if isinstance(child, str):
            return nodes.After(child)
        node = self._reader.mapping(child, "an entry of after")
        on = node.get("on", "completed")
        if on not in ("completed", "ended"):
            self._reader.problem(f"after: on must be 'completed' or 'ended', not {on!r}")
        step = self._reader.text({"type": "an entry of after", **node}, "step")
        return nodes.After(step, is_end_enough=on == "ended")

    def _yields(self, node: Mapping[str, Any]) -> tuple[nodes.YieldStatement, ...]:
        one = [node["yield"]] if node.get("yield") else []
        return tuple(self._yield(child) for child in one + self._reader.elements(node, "yields"))

    def _yield(self, child: Json) -> nodes.YieldStatement:
        node = self._reader.mapping(child, "a YieldStmt")
        with self._reader.inside("yield"):
            return nodes.YieldStatement(self._call(node.get("call")), location_of(node))

    def _call(self, child: Json) -> nodes.Call:
        node = self._reader.mapping(child, "a CallExpr")
        return nodes.Call(
            self._reader.text({"type": "a call", **node}, "target"),
            self._reader.each(node, "args", self._argument),
            self._reader.each(node, "mixins", self._mixin),
        )

    def _argument(self, child: Json) -> nodes.Argument:
        node = self._reader.mapping(child, "an argument")
        name = self._reader.text({"type": "an argument", **node}, "name")
        with self._reader.inside(f"argument {name!r}"):
            return nodes.Argument(name, self._expressions.expression(node.get("value")))

    def _mixin(self, child: Json) -> nodes.Mixin:
        node = self._reader.mapping(child, "a mixin")
        return nodes.Mixin(
            self._reader.text(node, "target"),
            self._reader.each(node, "args", self._argument),
            self._reader.text(node, "alias", default=""),
        )


def _identity(node: Json) -> tuple[str, str]:
    if not isinstance(node, dict):
        return "", str(id(node))
    return str(node.get("type")), str(node.get("name"))
