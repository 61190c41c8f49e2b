"""Write program JSON as AFL text, which the parser must turn back into the same JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.builders import Node

_LOOSEST_FIRST = (
    ["||"],
    ["&&"],
    ["==", "!=", ">", "<", ">=", "<=", "in", "not in", "contains", "startsWith", "endsWith"],
    ["++"],
    ["+", "-"],
    ["*", "/", "%"],
)
_LEVEL = {operator: level for level, found in enumerate(_LOOSEST_FIRST) for operator in found}
_COMPARISON, _JOIN, _UNARY, _INDEX = 2, 3, 6, 7


def text_of(document: Node) -> str:
    return "\n".join(_declaration(child) for child in document.get("declarations", []))


def _declaration(node: Node) -> str:
    match node["type"]:
        case "Namespace":
            uses = [f"use {name}" for name in node.get("uses", [])]
            children = [_declaration(child) for child in node.get("declarations", [])]
            return f"namespace {node['name']} {{\n" + "\n".join([*uses, *children]) + "\n}"
        case "SchemaDecl":
            return f"schema {node['name']} {{ {_fields(node.get('fields', []))} }}"
        case "ImplicitDecl":
            return f"implicit {node['name']} = {_call(node['call'])}"
    kind = {"FacetDecl": "facet", "EventFacetDecl": "event facet", "WorkflowDecl": "workflow"}
    parts = [f"{kind[node['type']]} {node['name']}({_fields(node.get('params', []))})"]
    if "returns" in node:
        parts.append(f"=> ({_fields(node['returns'])})")
    parts += [_mixin(mixin) for mixin in node.get("mixins", [])]
    if "pre_script" in node:
        parts.append(_script(node["pre_script"]))
    parts += _body(node.get("body"))
    parts += _catch(node)
    return " ".join(parts)


def _fields(fields: Iterable[Node]) -> str:
    return ", ".join(
        f"{field['name']}: {_type(field['type'])}"
        + (f" = {expression(field['default'])}" if "default" in field else "")
        for field in fields
    )


def _type(node: Any) -> str:
    return node if isinstance(node, str) else f"[{_type(node['elementType'])}]"


def _body(node: Any) -> list[str]:
    if isinstance(node, dict) and node["type"] == "PromptBlock":
        parts = [
            f"{key} {_quoted(node[key])}" for key in ("system", "template", "model") if key in node
        ]
        return ["prompt {", *parts, "}"]
    blocks = node if isinstance(node, list) else [node] if node else []
    return [f"andThen {_block(block)}" for block in blocks]


def _block(node: Node) -> str:
    if "script" in node:
        return _script(node["script"])
    if "when" in node:
        return f"when {_cases(node['when'])}"
    loop = ""
    if "foreach" in node:
        clause = node["foreach"]
        loop = f"foreach {clause['variable']} in {expression(clause['iterable'])} "
    return loop + _content(node)


def _content(node: Node) -> str:
    yields = node.get("yields", [node["yield"]] if "yield" in node else [])
    lines = [_statement(step) for step in node.get("steps", [])]
    lines += [f"yield {_call(one['call'])}" for one in yields]
    return "{\n" + "\n".join(lines) + "\n}"


def _cases(node: Node) -> str:
    lines = [
        f"case {'_' if case.get('default') else expression(case['condition'])} => {_content(case)}"
        for case in node["cases"]
    ]
    return "{\n" + "\n".join(lines) + "\n}"


def _catch(node: Node) -> list[str]:
    if "catch" not in node:
        return []
    catch = node["catch"]
    return ["catch", f"when {_cases(catch['when'])}" if "when" in catch else _content(catch)]


def _script(node: Node) -> str:
    return f"script python {_quoted(node['code'])}"


def _statement(node: Node) -> str:
    match node["type"]:
        case "SysLogStmt":
            return f"sys.log({_arguments(node)})"
        case "SysAssertStmt":
            return f"sys.assert({expression(node['condition'])})"
    parts = [f"{node['name']} = {_call(node['call'])}", *_body(node.get("body")), *_catch(node)]
    return " ".join(parts)


def _call(node: Node) -> str:
    mixins = "".join(f" {_mixin(mixin)}" for mixin in node.get("mixins", []))
    return f"{node['target']}({_arguments(node)}){mixins}"


def _mixin(node: Node) -> str:
    alias = f" as {node['alias']}" if "alias" in node else ""
    return f"with {node['target']}({_arguments(node)}){alias}"


def _arguments(node: Node) -> str:
    return ", ".join(f"{a['name']} = {expression(a['value'])}" for a in node.get("args", []))


def _quoted(text: str) -> str:
    return json.dumps(text)


def expression(node: Node, within: int = 0) -> str:
    """Write an expression with parentheses only where its precedence requires them."""
    level, text = _written(node)
    return text if level >= within else f"({text})"


def _written(node: Node) -> tuple[int, str]:
    match node["type"]:
        case "BinaryExpr":
            level = _LEVEL[node["operator"]]
            # Operators are left-associative, comparisons are not associative.
            left = expression(node["left"], level + (level == _COMPARISON))
            return level, f"{left} {node['operator']} {expression(node['right'], level + 1)}"
        case "ConcatExpr":
            return _JOIN, " ++ ".join(expression(part, _JOIN + 1) for part in node["operands"])
        case "UnaryExpr":
            return _UNARY, f"{node['operator']}{expression(node['operand'], _UNARY)}"
        case "IndexExpr":
            return _INDEX, f"{expression(node['target'], _INDEX)}[{expression(node['index'])}]"
        case "InputRef":
            return _INDEX, f"$.{'.'.join(node['path'])}"
        case "StepRef":
            return _INDEX, ".".join(node["path"])
        case "ArrayLiteral":
            return _INDEX, f"[{', '.join(map(expression, node['elements']))}]"
        case "MapLiteral":
            entries = [f"{_quoted(e['key'])}: {expression(e['value'])}" for e in node["entries"]]
            return _INDEX, f"#{{{', '.join(entries)}}}"
        case "Null":
            return _INDEX, "null"
    return _INDEX, json.dumps(node["value"])
