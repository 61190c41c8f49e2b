"""Trace decorated functions into one program.

Each function is traced separately from its callers, from a worklist. So a workflow
may call itself, or functions defined further down its file, and tracing terminates.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pydantic

from flowengine.authoring.annotations import mismatch
from flowengine.authoring.definitions import Definition
from flowengine.authoring.function_sources import source_digest
from flowengine.authoring.lint import lint
from flowengine.authoring.scopes import Scope, refuse_duplicate_name
from flowengine.authoring.symbols import Symbol, symbols_in
from flowengine.errors import AuthoringError, NotJson, SymbolMisuse
from flowengine.program import nodes
from flowengine.program.standard import RESULT, wider


def program_of(definition: Definition) -> nodes.Program:
    """Return the program of a workflow and all facets it calls, directly or not.

    Namespaces and declarations are sorted by name, so that the content hash does not
    depend on the order of definitions and imports.
    """
    reached = {definition.name: definition}
    declared: dict[str, nodes.FacetDeclaration] = {}
    pending = [definition]
    while pending:
        caller = pending.pop()
        declared[caller.name], scope = declaration_of(caller)
        for name, standard in scope.standard.items():
            declared[name] = wider(standard, declared.get(name, standard))
        for name, callee in scope.callees.items():
            if name not in reached:
                reached[name] = callee
                pending.append(callee)
            refuse_duplicate_name(callee, reached[name])
    namespaces: dict[str, list[nodes.FacetDeclaration]] = {}
    for name in sorted(declared):
        namespaces.setdefault(name.rpartition(".")[0], []).append(declared[name])
    return nodes.Program(
        tuple(nodes.Namespace(name, (), tuple(namespaces[name])) for name in sorted(namespaces))
    )


def declaration_of(definition: Definition) -> tuple[nodes.FacetDeclaration, Scope]:
    """Trace one function; its scope lists the facets it calls."""
    signature = definition.signature
    scope = Scope(definition.title, [p.name for p in signature.parameters])
    body = () if definition.kind is nodes.FacetKind.EVENT else (_trace(definition, scope),)
    declaration = nodes.FacetDeclaration(
        definition.kind,
        definition.short_name,
        params=signature.fields(),
        returns=signature.returns(),
        body=body,
        mixins=definition.mixins,
        options=definition.options,
        location=definition.location,
        function=_function(definition),
    )
    return declaration, scope


def _function(definition: Definition) -> nodes.FunctionOptions | None:
    if definition.function is None:
        return None
    return replace(definition.function, source_digest=source_digest(definition.fn))


def _trace(definition: Definition, scope: Scope) -> nodes.Block:
    if definition.activation is None:
        lint(definition.fn)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in definition.signature.parameters:
        name = parameter.name
        label = f"parameter {name!r}"
        symbol = Symbol(nodes.InputRef((name,)), scope, label, parameter.annotation.hint)
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            args.append(symbol)
        else:
            kwargs[name] = symbol
    with scope.active():
        if definition.activation is None:
            returned = _call_body(definition, args, kwargs)
        else:  # a durable function: its body is run, in the activations of this step
            returned = scope.call(definition.activation, tuple(args), kwargs, "")
            scope.statements[-1] = replace(scope.statements[-1], location=definition.location)
        annotation = definition.signature.result
        try:
            result = scope.to_expression(returned, annotation, RESULT)
        except pydantic.ValidationError as error:
            problem = mismatch(RESULT, annotation, returned, error)
            raise AuthoringError(f"{definition.title}: {problem}") from None
        except NotJson as error:
            raise AuthoringError(f"{definition.title}: {error}") from None
    return nodes.Block(
        statements=tuple(scope.statements),
        yields=scope.result_yield(definition.name, result, definition.location),
        location=definition.location,
    )


def _call_body(definition: Definition, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return definition.fn(*args, **kwargs)
    except pydantic.ValidationError as error:
        given = [problem["input"] for problem in error.errors(include_url=False)]
        if not any(symbols_in(given)):
            raise
        raise SymbolMisuse(
            f"{definition.title}: a {error.title} is built from values that exist "
            f"only in the run; write {error.title}.model_construct(…), which skips validation, "
            "pass a dict, or build it in an event facet"
        ) from None
