"""Hypothesis strategies for program JSON with every node of AFL text."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.builders import Node
from tests.unit.afl.texts import _LEVEL as OPERATORS

_WORDS = ["a", "b2", "_c", "event", "in", "model", "when", "script", "case", "facet", "Long"]
names = st.one_of(
    st.sampled_from(_WORDS), st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
).filter(lambda name: name not in {"yield", "true", "false", "null", "_"})
#: After a call these continue it or start a declaration.
_TAKEN = {"as", "with", "catch", "andThen", "use", "uses", "namespace", "facet", "event"}
_TAKEN |= {"workflow", "schema", "implicit", "script", "prompt", "sys"}
_step_names = names.filter(lambda name: name not in _TAKEN)
targets = st.lists(names, min_size=1, max_size=3).map(".".join)
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufdd0\ufdd1"), max_size=8
)
_filled = texts.filter(bool)


def node(kind: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Node]:
    """Build a node without its empty parts, like the compiler."""
    found = st.fixed_dictionaries({"type": st.just(kind), **parts})
    return found.map(lambda made: {k: v for k, v in made.items() if v is not None and v != []})


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def some(strategy: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(strategy, max_size=most)


_paths = st.lists(names, min_size=1, max_size=3)
_leaves = st.one_of(
    st.fixed_dictionaries({"type": st.just("Int"), "value": st.integers(0, 10**30)}),
    st.fixed_dictionaries(
        {"type": st.just("Double"), "value": st.floats(0, 1e9).map(lambda f: round(f, 3) + 0.0)}
    ).filter(lambda made: "e" not in repr(made["value"])),
    st.fixed_dictionaries({"type": st.just("Boolean"), "value": st.booleans()}),
    st.fixed_dictionaries({"type": st.just("String"), "value": texts}),
    st.just({"type": "Null"}),
    st.fixed_dictionaries({"type": st.just("InputRef"), "path": _paths}),
    st.fixed_dictionaries({"type": st.just("StepRef"), "path": _paths}),
)


def _larger(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    def of(kind: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Node]:
        return st.fixed_dictionaries({"type": st.just(kind), **parts})

    binary = sorted(set(OPERATORS) - {"++"})
    entry = st.fixed_dictionaries({"key": _filled, "value": inner})
    return st.one_of(
        of("BinaryExpr", operator=st.sampled_from(binary), left=inner, right=inner),
        of("ConcatExpr", operands=st.lists(inner, min_size=2, max_size=3)),
        of("UnaryExpr", operator=st.sampled_from("-!"), operand=inner),
        of("ArrayLiteral", elements=some(inner)),
        of("MapLiteral", entries=st.lists(entry, max_size=3, unique_by=lambda e: e["key"])),
        of("IndexExpr", target=inner, index=inner),
    )


expressions = st.recursive(_leaves, _larger, max_leaves=6)
_arguments = some(st.fixed_dictionaries({"name": names, "value": expressions}))


def _listed(name: str, times: int) -> Any:
    return {"type": "ArrayType", "elementType": _listed(name, times - 1)} if times else name


_types = st.builds(_listed, targets, st.integers(0, 3))


def _mixins(kind: str) -> st.SearchStrategy[list[Node]]:
    return some(node(kind, target=targets, args=_arguments, alias=maybe(names)), 2)


_call = node("CallExpr", target=targets, args=_arguments, mixins=_mixins("MixinCall"))
_yield = node("YieldStmt", call=node("CallExpr", target=targets, args=_arguments))
_scripts = node("ScriptBlock", language=st.just("python"), code=_filled)


def _holding(made: tuple[Node, list[Node], list[Node]]) -> Node:
    holder, steps, yields = made
    content: Node = (
        {"yield": yields[0]} if len(yields) == 1 else {"yields": yields} if yields else {}
    )
    return {**holder, **({"steps": steps} if steps else {}), **content}


def _content(
    holder: st.SearchStrategy[Node], steps: st.SearchStrategy[Node]
) -> st.SearchStrategy[Node]:
    return st.tuples(holder, some(steps, 2), some(_yield, 2)).map(_holding)


def _when(steps: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    holder = st.one_of(
        node("WhenCase", condition=expressions),
        st.just({"type": "WhenCase", "default": True}),
    )
    cases = st.lists(_content(holder, steps), min_size=1, max_size=2)
    return st.fixed_dictionaries({"type": st.just("WhenBlock"), "cases": cases})


def _bodies(steps: st.SearchStrategy[Node]) -> st.SearchStrategy[Any]:
    clause = node("ForeachClause", variable=names, iterable=expressions)
    block = st.one_of(
        _content(node("AndThenBlock", foreach=maybe(clause)), steps),
        node("AndThenBlock", when=_when(steps)),
        node("AndThenBlock", script=_scripts),
    )
    return st.one_of(block, st.lists(block, min_size=2, max_size=2), st.none())


def _catches(steps: st.SearchStrategy[Node]) -> st.SearchStrategy[Node | None]:
    return maybe(
        _content(st.just({"type": "CatchClause"}), steps) | node("CatchClause", when=_when(steps))
    )


_flat = st.one_of(
    node("StepStmt", name=_step_names, call=_call),
    node("SysLogStmt", args=_arguments),
    node("SysAssertStmt", condition=expressions),
)
_steps = st.recursive(
    _flat,
    lambda inner: node(
        "StepStmt", name=_step_names, call=_call, body=_bodies(inner), catch=_catches(inner)
    ),
    max_leaves=3,
)


def _fields(default: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Node]]:
    field = st.fixed_dictionaries({"name": names, "type": _types, "default": default})
    return some(field.map(lambda f: {k: v for k, v in f.items() if v is not None}))


_prompt = st.fixed_dictionaries(
    {"type": st.just("PromptBlock")}, optional=dict.fromkeys(("system", "template", "model"), texts)
)


def _facets(kind: str) -> st.SearchStrategy[Node]:
    signature = {
        "name": names,
        "params": _fields(maybe(expressions)),
        "returns": _fields(maybe(expressions)),
        "mixins": _mixins("MixinSig"),
        "catch": _catches(_steps),
    }
    composed = node(kind, **signature, pre_script=maybe(_scripts), body=_bodies(_steps))
    return composed | node(kind, **signature, body=_prompt)


_IN_ORDER = (
    _facets("FacetDecl"),
    _facets("EventFacetDecl"),
    _facets("WorkflowDecl"),
    node("ImplicitDecl", name=names, call=_call),
    node("SchemaDecl", name=names, fields=_fields(st.none())),
)


def _declared(most: int) -> st.SearchStrategy[list[Node]]:
    kinds = st.tuples(*(some(kind, most) for kind in _IN_ORDER))
    return kinds.map(lambda found: [one for kind in found for one in kind])


_namespaces = node("Namespace", name=targets, uses=some(targets), declarations=_declared(1))
documents = (
    st.tuples(some(_namespaces, 2), _declared(1))
    .map(lambda found: {"type": "Program", "declarations": [*found[0], *found[1]]})
    .map(lambda made: made if made["declarations"] else {"type": "Program"})
)
