"""Read AFL program JSON, of both generations, into nodes.

All problems are gathered, each with the declaration and statement it concerns,
and raised together: whoever writes a program mends it once, not ten times.

The first generation lists declarations by category and repeats some of them
under ``declarations``; the latest has ``declarations`` alone. A name met a
second time in the category lists is the same declaration, not another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from flowengine.errors import InvalidProgram, Problem
from flowengine.program.nodes import (
    BINARY_OPERATORS,
    MATCH_ALL,
    MATCH_FIRST,
    UNARY_OPERATORS,
    Argument,
    ArrayLiteral,
    ArrayType,
    AssertStatement,
    Binary,
    Block,
    Call,
    CatchClause,
    Concat,
    Declaration,
    EventOptions,
    Expression,
    FacetDeclaration,
    FacetKind,
    Field,
    ForeachClause,
    ImplicitDeclaration,
    Index,
    InputRef,
    Json,
    Literal,
    Location,
    LogStatement,
    MapLiteral,
    Mixin,
    Namespace,
    Program,
    PromptBlock,
    RetryPolicy,
    SchemaDeclaration,
    ScriptBlock,
    Statement,
    StepRef,
    StepStatement,
    Type,
    Unary,
    WhenCase,
    YieldStatement,
)

T = TypeVar("T")
_CATEGORIES = ("namespaces", "facets", "eventFacets", "workflows", "implicits", "schemas")
_LITERALS: dict[str, tuple[type, ...]] = {
    "String": (str,),
    "Int": (int,),
    "Double": (int, float),
    "Boolean": (bool,),
}


def parse_program(document: Json) -> Program:
    """Return the program that the JSON document says, or raise all its problems at once."""
    reader = _Reader()
    program = reader.program(document)
    if reader.problems:
        raise InvalidProgram(reader.problems)
    return program


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._where: list[str] = []

    # --- where we are, and what is wrong there ---

    @contextmanager
    def _inside(self, place: str) -> Iterator[None]:
        self._where.append(place)
        yield
        self._where.pop()

    def _problem(self, what: str) -> None:
        self.problems.append(Problem(", ".join(self._where), what))

    def _object(self, node: Json, expected: str) -> Mapping[str, Any]:
        if isinstance(node, dict):
            return node
        self._problem(f"expected {expected}, found {_kind(node)}")
        return {}

    def _list(self, node: Mapping[str, Any], key: str) -> list[Any]:
        value = node.get(key)
        if value is None:
            return []
        if isinstance(value, list):
            return value
        self._problem(f"{key!r} must be a list, found {_kind(value)}")
        return []

    def _text(self, node: Mapping[str, Any], key: str, *, default: str | None = None) -> str:
        value = node.get(key, default)
        if isinstance(value, str) and (value or default == ""):
            return value
        self._problem(f"{node.get('type', 'a node')!s} needs {key!r} as text, found {_kind(value)}")
        return ""

    def _each(self, nodes: list[Any], read: Callable[[Any], T]) -> tuple[T, ...]:
        return tuple(read(node) for node in nodes)

    # --- declarations ---

    def program(self, document: Json) -> Program:
        node = self._object(document, "a Program")
        if node and node.get("type") != "Program":
            self._problem(f"expected a Program, found {node.get('type')!r}")
            return Program()
        return Program(self._declarations(node))

    def _declarations(self, node: Mapping[str, Any]) -> tuple[Declaration, ...]:
        listed = [*self._list(node, "declarations")]
        seen = {_identity(child) for child in listed}
        for category in _CATEGORIES:
            listed += [c for c in self._list(node, category) if _identity(c) not in seen]
        found = (self._declaration(child) for child in listed)
        return tuple(declaration for declaration in found if declaration is not None)

    def _declaration(self, child: Json) -> Declaration | None:
        node = self._object(child, "a declaration")
        kind, name = node.get("type"), node.get("name")
        with self._inside(str(name or "a declaration without name")):
            if not isinstance(name, str) or not name:
                self._problem(f"a {kind} needs a name")
                return None
            match kind:
                case "Namespace":
                    uses = tuple(str(used) for used in self._list(node, "uses"))
                    return Namespace(name, uses, self._declarations(node))
                case "FacetDecl" | "EventFacetDecl" | "WorkflowDecl":
                    return self._facet(FacetKind(kind), name, node)
                case "SchemaDecl":
                    fields = self._each(self._list(node, "fields"), self._field)
                    return SchemaDeclaration(name, fields, _location(node))
                case "ImplicitDecl":
                    return ImplicitDeclaration(name, self._call(node.get("call")), _location(node))
            self._problem(f"unknown kind of declaration {kind!r}")
            return None

    def _facet(self, kind: FacetKind, name: str, node: Mapping[str, Any]) -> FacetDeclaration:
        body = node.get("body")
        prompt = isinstance(body, dict) and body.get("type") == "PromptBlock"
        return FacetDeclaration(
            kind,
            name,
            params=self._each(self._list(node, "params"), self._field),
            returns=self._each(self._list(node, "returns"), self._field),
            mixins=self._each(self._list(node, "mixins"), self._mixin),
            body=() if prompt else self._body(body),
            prompt=self._prompt(body) if prompt else None,
            pre_script=self._script(node["pre_script"]) if node.get("pre_script") else None,
            catch=self._catch(node["catch"]) if node.get("catch") else None,
            options=self._options(node["options"]) if node.get("options") else EventOptions(),
            location=_location(node),
        )

    def _options(self, child: Json) -> EventOptions:
        node = self._object(child, "the options of an event facet")
        try:
            retry = RetryPolicy(**node.get("retry", {}))
            options = EventOptions(**{**node, "retry": retry})
        except TypeError as problem:
            self._problem(f"unreadable options: {problem}")
            return EventOptions()
        numbers: dict[str, Any] = {"max_losses": options.max_losses}
        numbers |= {} if options.timeout is None else {"timeout": options.timeout}
        numbers |= {name: getattr(retry, name) for name in ("first_wait", "factor", "max_wait")}
        for name, value in numbers.items():
            if not (_is_number(value) and value >= 0):
                self._problem(f"option {name!r} must be a number of at least 0")
        if not _is_number(retry.attempts) or retry.attempts < 1:
            self._problem("retry needs at least one attempt")
        if not isinstance(options.task_list, str) or not options.task_list:
            self._problem(f"option 'task_list' must be text, found {_kind(options.task_list)}")
        return options

    def _field(self, child: Json) -> Field:
        node = self._object(child, "a parameter")
        name = self._text({**node, "type": "a parameter"}, "name")
        with self._inside(f"parameter {name!r}"):
            default = self._expression(node["default"]) if "default" in node else None
            return Field(name, self._type(node.get("type", "Json")), default, node.get("schema"))

    def _type(self, node: Json) -> Type:
        if isinstance(node, str):
            return node
        if isinstance(node, dict) and node.get("type") == "ArrayType":
            return ArrayType(self._type(node.get("elementType", "Json")))
        self._problem(f"unknown type {node!r}")
        return "Json"

    # --- blocks and statements ---

    def _body(self, node: Json) -> tuple[Block, ...]:
        if node is None:
            return ()
        return self._each(node if isinstance(node, list) else [node], self._block)

    def _block(self, child: Json) -> Block:
        node = self._object(child, "a block")
        if node.get("type") == "ScriptBlock":
            return Block(script=self._script(node), location=_location(node))
        if node.get("type") == "PromptBlock":
            self._problem("a prompt block can only be the body of an event facet")
            return Block()
        if node and node.get("type") != "AndThenBlock":
            self._problem(f"unknown kind of block {node.get('type')!r}")
        foreach = node.get("foreach")
        when = node.get("when")
        return Block(
            self._statements(node),
            self._yields(node),
            foreach=self._foreach(foreach) if foreach else None,
            cases=self._cases(when) if when else (),
            match=self._match(when) if when else MATCH_ALL,
            script=self._script(node["script"]) if node.get("script") else None,
            location=_location(node),
        )

    def _foreach(self, child: Json) -> ForeachClause:
        node = self._object(child, "a ForeachClause")
        with self._inside("foreach"):
            limit = node.get("limit")
            return ForeachClause(
                self._text(node, "variable"),
                self._expression(node.get("iterable")),
                limit=None if limit is None else self._expression(limit),
                collect_errors=bool(node.get("collect_errors", False)),
            )

    def _cases(self, child: Json) -> tuple[WhenCase, ...]:
        node = self._object(child, "a WhenBlock")
        with self._inside("when"):
            return self._each(self._list(node, "cases"), self._case)

    def _match(self, node: Json) -> str:
        match = node.get("match", MATCH_ALL) if isinstance(node, dict) else MATCH_ALL
        if match not in (MATCH_ALL, MATCH_FIRST):
            self._problem(f"when: 'match' is {MATCH_ALL!r} or {MATCH_FIRST!r}, found {match!r}")
        return str(match)

    def _case(self, child: Json) -> WhenCase:
        node = self._object(child, "a WhenCase")
        condition = None if node.get("default") else self._expression(node.get("condition"))
        return WhenCase(condition, self._statements(node), self._yields(node))

    def _catch(self, child: Json) -> CatchClause:
        node = self._object(child, "a CatchClause")
        with self._inside("catch"):
            when = node.get("when")
            return CatchClause(
                self._statements(node),
                self._yields(node),
                cases=self._cases(when) if when else (),
                match=self._match(when) if when else MATCH_ALL,
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
                    always = self._block(node["always"]) if node.get("always") else None
                    call, body = self._call(node.get("call")), self._body(node.get("body"))
                    return StepStatement(name, call, body, catch, always, _location(node))
            case "SysLogStmt":
                with self._inside("sys.log"):
                    arguments = self._each(self._list(node, "args"), self._argument)
                    return LogStatement(arguments, _location(node))
            case "SysAssertStmt":
                with self._inside("sys.assert"):
                    return AssertStatement(self._expression(node.get("condition")), _location(node))
        self._problem(f"unknown kind of statement {node.get('type')!r}")
        return None

    def _yields(self, node: Mapping[str, Any]) -> tuple[YieldStatement, ...]:
        one = [node["yield"]] if node.get("yield") else []
        return self._each(one + self._list(node, "yields"), self._yield)

    def _yield(self, child: Json) -> YieldStatement:
        node = self._object(child, "a YieldStmt")
        with self._inside("yield"):
            return YieldStatement(self._call(node.get("call")), _location(node))

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

    # --- expressions ---

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
            self._problem(f"{kind} literal holds {_kind(value)}")
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


def _identity(node: Json) -> tuple[Any, Any]:
    return (node.get("type"), node.get("name")) if isinstance(node, dict) else (None, id(node))


def _location(node: Mapping[str, Any]) -> Location | None:
    place = node.get("location")
    if not isinstance(place, dict) or not isinstance(place.get("line"), int):
        return None
    return Location(place["line"], place.get("column", 0), place.get("file", ""))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    if value == "":
        return "empty text"
    named = {dict: "a map", list: "a list", str: "text", bool: "a truth value"}
    numbers = {int: "a number", float: "a number"}
    return (named | numbers).get(type(value), f"a {type(value).__name__}")
