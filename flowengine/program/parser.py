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
from flowengine.program.block_parser import BlockParser
from flowengine.program.expression_parser import ExpressionParser
from flowengine.program.json_reader import DocumentReader, kind_of, location_of
from flowengine.program.nodes import Json

_CATEGORIES = ("namespaces", "facets", "eventFacets", "workflows", "implicits", "schemas")


def parse_program(document: Json) -> nodes.Program:
    """Return the program of a JSON document, or raise all its problems at once."""
    reader = DocumentReader()
    try:
        program = ProgramParser(reader).parse(document)
    except RecursionError:
        raise InvalidProgram([reader.nested_too_deeply()]) from None
    if reader.problems:
        raise InvalidProgram(reader.problems)
    return program


class ProgramParser:
    """Parses the declarations of a program."""

    def __init__(self, json: DocumentReader) -> None:
        self._json = json
        self._expressions = ExpressionParser(json)
        self._blocks = BlockParser(json, self._expressions)

    def parse(self, document: Json) -> nodes.Program:
        node = self._json.mapping(document, "a Program")
        if isinstance(document, dict) and node.get("type") != "Program":
            self._json.problem(f"expected a Program, found {node.get('type')!r}")
            return nodes.Program()
        return nodes.Program(self._declarations(node))

    def _declarations(self, node: Mapping[str, Any]) -> tuple[nodes.Declaration, ...]:
        listed = [*self._json.elements(node, "declarations")]
        seen = {_identity(child) for child in listed}
        for category in _CATEGORIES:
            listed += [c for c in self._json.elements(node, category) if _identity(c) not in seen]
        declarations = (self._declaration(child) for child in listed)
        return tuple(declaration for declaration in declarations if declaration is not None)

    def _declaration(self, child: Json) -> nodes.Declaration | None:
        node = self._json.mapping(child, "a declaration")
        kind, name = node.get("type"), node.get("name")
        with self._json.inside(str(name or "a declaration without name")):
            if not isinstance(name, str) or not name:
                self._json.problem(f"a {kind} needs a name")
                return None
            match kind:
                case "Namespace":
                    uses = tuple(str(used) for used in self._json.elements(node, "uses"))
                    return nodes.Namespace(name, uses, self._declarations(node))
                case "FacetDecl" | "EventFacetDecl" | "WorkflowDecl":
                    return self._facet(nodes.FacetKind(kind), name, node)
                case "SchemaDecl":
                    fields = self._json.each(node, "fields", self._field)
                    return nodes.SchemaDeclaration(name, fields, location_of(node))
                case "ImplicitDecl":
                    return nodes.ImplicitDeclaration(
                        name, self._blocks.call(node.get("call")), location_of(node)
                    )
            self._json.problem(f"unknown kind of declaration {kind!r}")
            return None

    def _facet(
        self, kind: nodes.FacetKind, name: str, node: Mapping[str, Any]
    ) -> nodes.FacetDeclaration:
        body = node.get("body")
        prompt = isinstance(body, dict) and body.get("type") == "PromptBlock"
        return nodes.FacetDeclaration(
            kind,
            name,
            params=self._json.each(node, "params", self._field),
            returns=self._json.each(node, "returns", self._field),
            mixins=self._json.each(node, "mixins", self._blocks.mixin),
            body=() if prompt else self._blocks.body(body),
            prompt=self._blocks.prompt(body) if prompt else None,
            pre_script=self._blocks.script(node["pre_script"]) if node.get("pre_script") else None,
            catch=self._blocks.catch(node["catch"]) if node.get("catch") else None,
            options=self._options(node["options"]) if node.get("options") else nodes.EventOptions(),
            location=location_of(node),
        )

    def _options(self, child: Json) -> nodes.EventOptions:
        node = self._json.mapping(child, "the options of an event facet")
        try:
            retry = nodes.RetryPolicy(**node.get("retry", {}))
            options = nodes.EventOptions(**{**node, "retry": retry})
        except TypeError as problem:
            self._json.problem(f"unreadable options: {problem}")
            return nodes.EventOptions()
        numbers: dict[str, Any] = {"max_losses": options.max_losses}
        numbers |= {} if options.timeout is None else {"timeout": options.timeout}
        numbers |= {name: getattr(retry, name) for name in ("first_wait", "factor", "max_wait")}
        for name, value in numbers.items():
            if not (_is_number(value) and value >= 0):
                self._json.problem(f"option {name!r} must be a number of at least 0")
        if not _is_number(retry.attempts) or retry.attempts < 1:
            self._json.problem("retry needs at least one attempt")
        if not isinstance(options.task_list, str) or not options.task_list:
            self._json.problem(
                f"option 'task_list' must be text, found {kind_of(options.task_list)}"
            )
        if not isinstance(options.breaker, str):
            self._json.problem(f"option 'breaker' must be text, found {kind_of(options.breaker)}")
        return options

    def _field(self, child: Json) -> nodes.Field:
        node = self._json.mapping(child, "a parameter")
        name = self._json.text({**node, "type": "a parameter"}, "name")
        with self._json.inside(f"parameter {name!r}"):
            default = self._expressions.parse(node["default"]) if "default" in node else None
            return nodes.Field(
                name, self._type(node.get("type", "Json")), default, node.get("schema")
            )

    def _type(self, node: Json) -> nodes.Type:
        if isinstance(node, str):
            return node
        if isinstance(node, dict) and node.get("type") == "ArrayType":
            return nodes.ArrayType(self._type(node.get("elementType", "Json")))
        self._json.problem(f"unknown type {node!r}")
        return "Json"


def _identity(node: Json) -> tuple[str, str]:
    if not isinstance(node, dict):
        return "", str(id(node))
    return str(node.get("type")), str(node.get("name"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
