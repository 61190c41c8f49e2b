"""Serialize nodes as AFL program JSON, and hash a program by its content.

The serialized form is canonical: without empty keys, ids and locations. So equal programs have
the same text and the same hash, and ``parse_program(write_program(p)) == p``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from flowengine.program import nodes
from flowengine.program.nodes import Json

_Node = dict[str, Any]


def write_program(program: nodes.Program) -> Json:
    """Return the canonical JSON document of a program."""
    return _node("Program", declarations=[_declaration(d) for d in program.declarations])


def document_text(document: Json) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def text_hash(text: str) -> str:
    """Return the content hash: the same for equal programs."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def program_text(program: nodes.Program) -> str:
    return document_text(write_program(program))


def program_hash(program: nodes.Program) -> str:
    return text_hash(program_text(program))


def _node(kind: str, **parts: Any) -> _Node:
    """A node without its empty parts; ``_yield`` becomes ``yield``."""
    kept = {k.strip("_"): v for k, v in parts.items() if v not in (None, [], {}, "")}
    return {"type": kind, **kept}


def _declaration(node: nodes.Declaration) -> _Node:
    match node:
        case nodes.Namespace():
            children = [_declaration(d) for d in node.declarations]
            return _node("Namespace", name=node.name, uses=list(node.uses), declarations=children)
        case nodes.FacetDeclaration():
            return _facet(node)
        case nodes.SchemaDeclaration():
            return _node("SchemaDecl", name=node.name, fields=_fields(node.fields))
        case nodes.ImplicitDeclaration():
            return _node("ImplicitDecl", name=node.name, call=_call(node.call))


def _facet(node: nodes.FacetDeclaration) -> _Node:
    return _node(
        node.kind.value,
        name=node.name,
        params=_fields(node.params),
        returns=_fields(node.returns),
        mixins=[_mixin("MixinSig", m) for m in node.mixins],
        body=_prompt(node.prompt) if node.prompt else [_block(b) for b in node.body],
        pre_script=_script(node.pre_script) if node.pre_script else None,
        catch=_catch(node.catch) if node.catch else None,
        options=_options(node.options),
        function=None if node.function is None else _function(node.function),
    )


def _function(options: nodes.FunctionOptions) -> _Node:
    return {"version": options.version, **_changed(options, nodes.FunctionOptions())}


def _options(options: nodes.EventOptions) -> _Node:
    """The options that differ from the defaults: an AFL program has none."""
    chosen = _changed(options, nodes.EventOptions())
    if "retry" in chosen:
        chosen["retry"] = _changed(options.retry, nodes.EventOptions().retry)
    for name in ("limit", "rate"):
        if name in chosen:
            chosen[name] = [asdict(one) for one in chosen[name]]
    if options.cache is not None:
        chosen["cache"] = asdict(options.cache)
    return chosen


def _changed(value: Any, default: Any) -> _Node:
    return {
        field.name: list(given) if isinstance(given, tuple) else given
        for field in fields(value)
        if (given := getattr(value, field.name)) != getattr(default, field.name)
    }


def _fields(declared: Iterable[nodes.Field]) -> list[_Node]:
    return [
        {"name": f.name, "type": _type(f.type)}
        | ({"default": _expression(f.default)} if f.default is not None else {})
        | ({"schema": dict(f.schema)} if f.schema is not None else {})
        for f in declared
    ]


def _type(node: nodes.Type) -> Json:
    if isinstance(node, nodes.ArrayType):
        return {"type": "ArrayType", "elementType": _type(node.element)}
    return node


def _block(node: nodes.Block) -> _Node:
    foreach = node.foreach and _node(
        "ForeachClause",
        variable=node.foreach.variable,
        iterable=_expression(node.foreach.iterable),
        limit=None if node.foreach.limit is None else _expression(node.foreach.limit),
        collect_errors=node.foreach.collect_errors or None,
    )
    return _node(
        "AndThenBlock",
        foreach=foreach,
        when=_when(node.cases, node.first_match),
        script=_script(node.script) if node.script else None,
        **_contents(node.statements, node.yields),
    )


def _contents(
    statements: Iterable[nodes.Statement], yields: tuple[nodes.YieldStatement, ...]
) -> _Node:
    written = [_node("YieldStmt", call=_call(y.call)) for y in yields]
    parts: _Node = {"steps": [_statement(s) for s in statements]}
    return parts | ({"_yield": written[0]} if len(written) == 1 else {"yields": written})


def _when(cases: tuple[nodes.WhenCase, ...], first_match: bool) -> _Node | None:
    match = "first" if first_match else None
    return _node("WhenBlock", cases=[_case(c) for c in cases], match=match) if cases else None


def _case(node: nodes.WhenCase) -> _Node:
    condition: _Node = (
        {"default": True} if node.condition is None else {"condition": _expression(node.condition)}
    )
    return _node("WhenCase", **condition, **_contents(node.statements, node.yields))


def _catch(node: nodes.CatchClause) -> _Node:
    when = _when(node.cases, node.first_match)
    return _node("CatchClause", when=when, **_contents(node.statements, node.yields))


def _script(node: nodes.ScriptBlock) -> _Node:
    return _node("ScriptBlock", language=node.language, code=node.code)


def _prompt(node: nodes.PromptBlock) -> _Node:
    return _node("PromptBlock", system=node.system, template=node.template, model=node.model)


def _statement(node: nodes.Statement) -> _Node:
    match node:
        case nodes.LogStatement():
            return _node("SysLogStmt", args=_arguments(node.arguments))
        case nodes.AssertStatement():
            return _node("SysAssertStmt", condition=_expression(node.condition))
        case _:
            return _node(
                "StepStmt",
                name=node.name,
                call=_call(node.call),
                body=[_block(b) for b in node.body],
                catch=_catch(node.catch) if node.catch else None,
                always=[_block(b) for b in node.always],
                after=[_after(a) for a in node.after],
            )


def _after(node: nodes.After) -> Json:
    return {"step": node.step, "on": "ended"} if node.is_end_enough else {"step": node.step}


def _call(node: nodes.Call) -> _Node:
    return _node(
        "CallExpr",
        target=node.target,
        args=_arguments(node.arguments),
        mixins=[_mixin("MixinCall", m) for m in node.mixins],
    )


def _mixin(kind: str, node: nodes.Mixin) -> _Node:
    return _node(kind, target=node.target, args=_arguments(node.arguments), alias=node.alias)


def _arguments(arguments: Iterable[nodes.Argument]) -> list[_Node]:
    return [{"name": a.name, "value": _expression(a.value)} for a in arguments]


def _expression(node: nodes.Expression) -> Json:
    match node:
        case nodes.Literal(value):
            return _literal(value)
        case nodes.InputRef(path):
            return {"type": "InputRef", "path": list(path)}
        case nodes.StepRef(path):
            return {"type": "StepRef", "path": list(path)}
        case nodes.Concat(operands):
            return {"type": "ConcatExpr", "operands": [_expression(o) for o in operands]}
        case nodes.Binary(operator, left, right):
            sides = {"left": _expression(left), "right": _expression(right)}
            return {"type": "BinaryExpr", "operator": operator, **sides}
        case nodes.Unary(operator, operand):
            return {"type": "UnaryExpr", "operator": operator, "operand": _expression(operand)}
        case nodes.ArrayLiteral(elements):
            return {"type": "ArrayLiteral", "elements": [_expression(e) for e in elements]}
        case nodes.MapLiteral(entries):
            written = [{"key": key, "value": _expression(value)} for key, value in entries]
            return {"type": "MapLiteral", "entries": written}
        case nodes.Index(target, index):
            return {"type": "IndexExpr", "target": _expression(target), "index": _expression(index)}


def _literal(value: Json) -> Json:
    """A literal as a node of AFL; lists and maps become literals of their elements."""
    match value:
        case None:
            return {"type": "Null"}
        case bool():
            return {"type": "Boolean", "value": value}
        case int():
            return {"type": "Int", "value": value}
        case float():
            return {"type": "Double", "value": value}
        case str():
            return {"type": "String", "value": value}
        case list() | tuple():
            return {"type": "ArrayLiteral", "elements": [_literal(v) for v in value]}
        case _:
            entries = [{"key": k, "value": _literal(v)} for k, v in value.items()]
            return {"type": "MapLiteral", "entries": entries}
