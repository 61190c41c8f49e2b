"""Build program JSON from the rules of the grammar.

One method for each rule. The parser calls it after the last token of the rule, with the results
of the inner rules. No tree is built and nothing here recurses; `parser` limits the nesting.

The JSON is that of AFL's own compiler: the same keys without empty ones, declarations sorted
by kind. It has positions, but not the random ids of AFL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lark import Token, Transformer, v_args

from flowengine.afl.tokens import documentation, script_code, string_value
from flowengine.program.function_options import function_of
from flowengine.program.nodes import Json

Node = dict[str, Json]
_Contents = tuple[list[Node], list[Node]]
_Mixin = tuple[Token, Node]

#: The order in which AFL's compiler lists declarations.
KINDS = ("Namespace", "FacetDecl", "EventFacetDecl", "WorkflowDecl", "ImplicitDecl", "SchemaDecl")
_FACETS = {"facet": "FacetDecl", "event": "EventFacetDecl", "workflow": "WorkflowDecl"}
_DIRECTIVES = ("system", "template", "model")


class SyntaxMistake(Exception):
    """A token that the grammar accepts and the language forbids."""

    def __init__(self, token: Token, what: str) -> None:
        super().__init__(token, what)
        self.token, self.what = token, what


def _node(kind: str, at: Token | None = None, **parts: Json) -> Node:
    """Return a node without its empty parts; ``yield_`` is the key ``yield``."""
    kept = {k.rstrip("_"): v for k, v in parts.items() if v is not None and v != []}
    if at is not None:
        kept["location"] = {"line": at.line, "column": at.column}
    return {"type": kind, **kept}


def _text(token: Token) -> str:
    try:
        return string_value(token)
    except (ValueError, OverflowError):
        raise SyntaxMistake(
            token, "an escape in this string is not a character; check its \\u and \\U"
        ) from None


def _dotted(name: Sequence[Token]) -> str:
    return ".".join(name)


def _one_or_all(nodes: list[Node]) -> Json:
    return nodes[0] if len(nodes) == 1 else nodes


def _content_parts(contents: _Contents) -> Node:
    steps, yields = contents
    return {"steps": steps, **({"yield_": yields[0]} if len(yields) == 1 else {"yields": yields})}


def _declarations(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: KINDS.index(node["type"]))


@dataclass(frozen=True, slots=True)
class _Tail:
    body: Json
    script: Node | None = None


@v_args(inline=True)
class ProgramTransformer(Transformer[Token, Node]):
    # --- declarations ---

    def start(self, *nodes: Node | None) -> Node:
        return _node("Program", declarations=_declarations(n for n in nodes if n and "type" in n))

    def documented(self, *parts: Node) -> Node:
        *docs, declared = parts
        return {**declared, "doc": docs[0]["doc"]} if docs and docs[0]["doc"] else declared

    def docs(self, *comments: Token) -> Node:
        return {"doc": documentation(comments[-1])}

    def namespace(self, at: Token, name: list[Token], *members: Node) -> Node:
        uses = [member["used"] for member in members if "used" in member]
        declared = _declarations(member for member in members if "type" in member)
        return _node("Namespace", at, name=_dotted(name), uses=uses, declarations=declared)

    def use(self, at: Token, name: list[Token]) -> Node:
        return {"used": _dotted(name)}

    def facet(self, kind: tuple[str, Token], name: str, params: list[Node], *rest: Any) -> Node:
        *returns, mixins, tail = rest if isinstance(rest[-1], _Tail) else rest[:-1]
        catch = None if isinstance(rest[-1], _Tail) else rest[-1]
        function = function_of(name)
        return _node(
            kind[0],
            kind[1],
            name=str(name),
            function=None if function is None else {"version": function[1]},
            params=params,
            returns=returns[0] if returns else [],
            mixins=[_node("MixinSig", at, **mixin) for at, mixin in mixins],
            body=tail.body,
            pre_script=tail.script,
            catch=catch,
        )

    def facet_name(self, name: Token, version: Token) -> str:
        return f"{name}{version}"

    def kind(self, at: Token, *_: Token) -> tuple[str, Token]:
        return _FACETS[at], at

    def params(self, *nodes: Any) -> list[Any]:
        return list(nodes)

    blocks = statements = mixins = arguments = params

    def param(self, name: Token, type_: Json, default: Node | None = None) -> Node:
        declared = {"name": str(name), "type": type_}
        return declared if default is None else {**declared, "default": default}

    field = param

    def named_type(self, name: list[Token]) -> str:
        return _dotted(name)

    def list_type(self, element: Json) -> Node:
        return {"type": "ArrayType", "elementType": element}

    def body(self, blocks: list[Node]) -> _Tail:
        return _Tail(_one_or_all(blocks))

    def scripted_body(self, script: Node, blocks: list[Node]) -> _Tail:
        return _Tail(_one_or_all(blocks), script)

    def prompt(self, *directives: tuple[str, str]) -> _Tail:
        return _Tail({"type": "PromptBlock", **dict(directives)})

    def directive(self, name: Token, text: Token) -> tuple[str, str]:
        if name not in _DIRECTIVES:
            raise SyntaxMistake(name, f"a prompt has {', '.join(_DIRECTIVES)}, not {name!s}")
        return str(name), _text(text)

    def schema(self, at: Token, name: Token, *fields: Node) -> Node:
        return _node("SchemaDecl", at, name=str(name), fields=list(fields))

    def implicit(self, at: Token, name: Token, call: Node) -> Node:
        return _node("ImplicitDecl", at, name=str(name), call=call)

    # --- blocks ---

    def plain_block(self, at: Token, contents: _Contents) -> Node:
        return _node("AndThenBlock", at, **_content_parts(contents))

    def foreach_block(self, at: Token, name: Token, items: Node, contents: _Contents) -> Node:
        clause = _node("ForeachClause", variable=str(name), iterable=items)
        return _node("AndThenBlock", at, foreach=clause, **_content_parts(contents))

    def when_block(self, at: Token, cases: Node) -> Node:
        return _node("AndThenBlock", at, when=cases)

    def script_block(self, at: Token, script: Node) -> Node:
        return _node("AndThenBlock", at, script=script)

    def catch_all(self, at: Token, contents: _Contents) -> Node:
        return _node("CatchClause", at, **_content_parts(contents))

    def catch_when(self, at: Token, cases: Node) -> Node:
        return _node("CatchClause", at, when=cases)

    def content(self, steps: list[Node], yields: list[Node]) -> _Contents:
        return steps, yields

    def yields(self, *yields: list[Node]) -> list[Node]:
        return [one for chain in yields for one in chain]

    def cases(self, *cases: Node) -> Node:
        return _node("WhenBlock", cases=list(cases))

    def case(self, condition: Node, contents: _Contents) -> Node:
        return _node("WhenCase", condition=condition, **_content_parts(contents))

    def otherwise(self, contents: _Contents) -> Node:
        return _node("WhenCase", default=True, **_content_parts(contents))

    def script(self, *parts: Token) -> Node:
        *language, code = parts
        if language and language[0] != "python":
            raise SyntaxMistake(language[0], f"a script must be python, not {language[0]!s}")
        source = _text(code) if code.type == "STRING" else script_code(code)
        if not source:
            raise SyntaxMistake(code, "the script is empty")
        return _node("ScriptBlock", code, language="python", code=source)

    # --- statements ---

    def step(
        self,
        name: Token,
        call: Node,
        after: list[Node],
        body: list[Node],
        catch: Node | None = None,
    ) -> Node:
        parts = {"body": _one_or_all(body), "catch": catch, "after": after}
        return _node("StepStmt", name, name=str(name), call=call, **parts)

    def order(self, *steps: Node) -> list[Node]:
        return list(steps)

    def preceding(self, name: Token, ended: Token | None = None) -> Node:
        return {"step": str(name), "on": "ended"} if ended else {"step": str(name)}

    def log(self, at: Token, arguments: list[Node]) -> Node:
        return _node("SysLogStmt", at, args=arguments)

    def check(self, at: Token, condition: Node) -> Node:
        return _node("SysAssertStmt", at, condition=condition)

    def yielding(self, at: Token, call: Node) -> list[Node]:
        """Split a yield with mixins into one yield for each target."""
        others = call.pop("mixins", [])
        calls = [call]
        for other in others:
            parts = {key: other[key] for key in ("target", "args", "location") if key in other}
            calls.append({"type": "CallExpr", **parts})
        return [_node("YieldStmt", at, call=one) for one in calls]

    def call(self, called: tuple[Token, str], arguments: list[Node], mixins: list[_Mixin]) -> Node:
        at, target = called
        mixed = [_node("MixinCall", place, **mixin) for place, mixin in mixins]
        return _node("CallExpr", at, target=target, args=arguments, mixins=mixed)

    def called(self, name: list[Token], version: str = "") -> tuple[Token, str]:
        return name[0], f"{_dotted(name)}{version}"

    def mixin(self, name: list[Token], arguments: list[Node], alias: Token | None = None) -> _Mixin:
        named = None if alias is None else str(alias)
        return name[0], {"target": _dotted(name), "args": arguments, "alias": named}

    def argument(self, name: Token, value: Node) -> Node:
        return {"name": str(name), "value": value}

    # --- expressions ---

    def either(self, left: Node, right: Node) -> Node:
        return _node("BinaryExpr", operator="||", left=left, right=right)

    def both(self, left: Node, right: Node) -> Node:
        return _node("BinaryExpr", operator="&&", left=left, right=right)

    def binary(self, left: Node, operator: Token, right: Node) -> Node:
        return _node("BinaryExpr", operator=" ".join(operator.split()), left=left, right=right)

    def join(self, *operands: Node) -> Node:
        return {"type": "ConcatExpr", "operands": list(operands)}

    def sign(self, operator: Token, operand: Node) -> Node:
        if operator == "+":
            return operand
        return {"type": "UnaryExpr", "operator": "-", "operand": operand}

    def negation(self, operand: Node) -> Node:
        return {"type": "UnaryExpr", "operator": "!", "operand": operand}

    def index(self, target: Node, index: Node) -> Node:
        return {"type": "IndexExpr", "target": target, "index": index}

    def text(self, token: Token) -> Node:
        return {"type": "String", "value": _text(token)}

    def integer(self, token: Token) -> Node:
        try:
            return {"type": "Int", "value": int(token)}
        except ValueError:
            raise SyntaxMistake(token, "the number has too many digits") from None

    def double(self, token: Token) -> Node:
        value = float(token)
        if not math.isfinite(value):
            raise SyntaxMistake(token, "the number is too large")
        return {"type": "Double", "value": value}

    def boolean(self, token: Token) -> Node:
        return {"type": "Boolean", "value": token == "true"}

    def null(self, _: Token) -> Node:
        return {"type": "Null"}

    def step_ref(self, path: list[Token]) -> Node:
        return {"type": "StepRef", "path": [str(name) for name in path]}

    def input_ref(self, path: list[Token]) -> Node:
        return {"type": "InputRef", "path": [str(name) for name in path]}

    def array(self, *elements: Node) -> Node:
        return {"type": "ArrayLiteral", "elements": list(elements)}

    def mapping(self, *entries: tuple[Token, Node]) -> Node:
        seen: set[str] = set()
        for key, entry in entries:
            if entry["key"] in seen:
                raise SyntaxMistake(key, f"the key {entry['key']!r} is given twice in this map")
            seen.add(entry["key"])
        return {"type": "MapLiteral", "entries": [entry for _, entry in entries]}

    def entry(self, key: Token, value: Node) -> tuple[Token, Node]:
        name = _text(key) if key.type == "STRING" else str(key)
        if not name:
            raise SyntaxMistake(key, "a key of a map needs at least one character")
        return key, {"key": name, "value": value}

    def qname(self, *names: Token) -> Sequence[Token]:
        return names
