"""Programs for tests: AFL program JSON, written as short as the text it stands for.

    workflow("W", "n", "out", block(step("s", "E", x=given("n")), yields=[to("W", out=of("s.y"))]))

A literal stands for itself. Fields are names with a type after a colon, ``xs:[Long]``; a
field with a default or a schema is a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Node = dict[str, Any]


def program(*declarations: Node) -> Node:
    return {"type": "Program", "declarations": list(declarations)}


def namespace(name: str, *declarations: Node, uses: Iterable[str] = ()) -> Node:
    return {
        "type": "Namespace",
        "name": name,
        "uses": list(uses),
        "declarations": list(declarations),
    }


Fields = str | Iterable[str | Node]


def event(
    name: str,
    params: Fields = "",
    returns: Fields = "",
    *blocks: Node,
    options: Mapping[str, Any] | None = None,
) -> Node:
    found = _facet("EventFacetDecl", name, params, returns, blocks)
    return found | ({"options": dict(options)} if options else {})


def facet(name: str, params: Fields = "", returns: Fields = "", *blocks: Node) -> Node:
    return _facet("FacetDecl", name, params, returns, blocks)


def workflow(name: str, params: Fields = "", returns: Fields = "", *blocks: Node) -> Node:
    return _facet("WorkflowDecl", name, params, returns, blocks)


def _facet(kind: str, name: str, params: Fields, returns: Fields, blocks: tuple[Node, ...]) -> Node:
    return {
        "type": kind,
        "name": name,
        "params": _fields(params),
        "returns": _fields(returns),
        "body": list(blocks),
    }


def _fields(fields: Fields) -> list[Node]:
    listed = fields.split() if isinstance(fields, str) else fields
    return [field if isinstance(field, dict) else _field(field) for field in listed]


def _field(text: str) -> Node:
    name, _, declared = text.partition(":")
    return {"name": name, "type": _type(declared or "Json")}


def _type(text: str) -> Any:
    if text.startswith("["):
        return {"type": "ArrayType", "elementType": _type(text[1:-1])}
    return text


def block(
    *statements: Node,
    yields: Iterable[Node] = (),
    foreach: tuple[str, Any] | None = None,
    **clause: Any,
) -> Node:
    node: Node = {"type": "AndThenBlock"} | _contents(statements, yields)
    if foreach:
        variable, iterable = foreach
        over = {"type": "ForeachClause", "variable": variable, "iterable": iterable}
        node["foreach"] = over | clause
    return node


def when(*cases: Node, first: bool = False) -> Node:
    """A block of cases."""
    node: Node = {"type": "WhenBlock", "cases": list(cases)}
    return {"type": "AndThenBlock", "when": node | ({"match": "first"} if first else {})}


def case(condition: Any, *statements: Node, yields: Iterable[Node] = ()) -> Node:
    return {"type": "WhenCase", "condition": condition} | _contents(statements, yields)


def default(*statements: Node, yields: Iterable[Node] = ()) -> Node:
    return {"type": "WhenCase", "default": True} | _contents(statements, yields)


def catching(node: Node, *statements: Node, yields: Iterable[Node] = ()) -> Node:
    """A step or a declaration with a catch."""
    return node | {"catch": {"type": "CatchClause"} | _contents(statements, yields)}


def catching_when(node: Node, *cases: Node, first: bool = False) -> Node:
    """A step or a declaration with a catch of cases."""
    chosen = when(*cases, first=first)["when"]
    return node | {"catch": {"type": "CatchClause", "when": chosen}}


def always(node: Node, *statements: Node) -> Node:
    """A step with what runs at its end, well or badly."""
    return node | {"always": block(*statements)}


def mixed(node: Node, target: str, alias: str = "", /, **arguments: Any) -> Node:
    """A step with one more mixin at its call."""
    call = node["call"]
    mixins = [*call.get("mixins", []), _mixin("MixinCall", target, alias, arguments)]
    return node | {"call": call | {"mixins": mixins}}


def signed(node: Node, target: str, alias: str = "", /, **arguments: Any) -> Node:
    """A declaration with one more mixin in its signature."""
    mixins = [*node.get("mixins", []), _mixin("MixinSig", target, alias, arguments)]
    return node | {"mixins": mixins}


def _mixin(kind: str, target: str, alias: str, arguments: Mapping[str, Any]) -> Node:
    return {"type": kind, "target": target, "args": _arguments(arguments), "alias": alias}


def implicit(target: str, /, **arguments: Any) -> Node:
    return {"type": "ImplicitDecl", "name": f"of_{target}", "call": _call(target, arguments)}


def schema(name: str, fields: Fields = "") -> Node:
    return {"type": "SchemaDecl", "name": name, "fields": _fields(fields)}


def _contents(statements: Iterable[Node], yields: Iterable[Node]) -> Node:
    return {"steps": list(statements), "yields": list(yields)}


def step(step_name: str, target: str, *body: Node, **arguments: Any) -> Node:
    return {
        "type": "StepStmt",
        "name": step_name,
        "call": _call(target, arguments),
        "body": list(body),
    }


def after(node: Node, *steps: str | Node) -> Node:
    """A step that comes after others: names, or maps with ``on``."""
    return node | {"after": list(steps)}


def log(**arguments: Any) -> Node:
    return {"type": "SysLogStmt", "args": _arguments(arguments)}


def check(condition: Any) -> Node:
    return {"type": "SysAssertStmt", "condition": condition}


def to(target: str, **attributes: Any) -> Node:
    """A yield."""
    return {"type": "YieldStmt", "call": _call(target, attributes)}


def _call(target: str, arguments: Mapping[str, Any]) -> Node:
    return {"type": "CallExpr", "target": target, "args": _arguments(arguments)}


def _arguments(arguments: Mapping[str, Any]) -> list[Node]:
    return [{"name": name, "value": value} for name, value in arguments.items()]


def given(path: str) -> Node:
    """``$.path``"""
    return {"type": "InputRef", "path": path.split(".")}


def of(path: str) -> Node:
    """``step.attribute``"""
    return {"type": "StepRef", "path": path.split(".")}


def op(left: Any, symbol: str, right: Any) -> Node:
    return {"type": "BinaryExpr", "operator": symbol, "left": left, "right": right}


def joined(*operands: Any) -> Node:
    return {"type": "ConcatExpr", "operands": list(operands)}


def listed(*elements: Any) -> Node:
    return {"type": "ArrayLiteral", "elements": list(elements)}


def item(target: Any, index: Any) -> Node:
    return {"type": "IndexExpr", "target": target, "index": index}
