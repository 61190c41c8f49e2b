"""Helpers that read a traced program in a test."""

from __future__ import annotations

from typing import Any

from flowengine.authoring import Workflow
from flowengine.program.linker import link_program
from flowengine.program.nodes import (
    Block,
    Expression,
    FacetDeclaration,
    Namespace,
    StepStatement,
)


def declarations(workflow: Workflow[..., Any]) -> dict[str, FacetDeclaration]:
    """Return the declarations of a workflow's program by qualified name; the program must link."""
    program = workflow.program()
    link_program(program)
    found = {}
    for namespace in program.declarations:
        assert isinstance(namespace, Namespace)
        for declaration in namespace.declarations:
            assert isinstance(declaration, FacetDeclaration)
            found[f"{namespace.name}.{declaration.name}"] = declaration
    return found


def block(workflow: Workflow[..., Any]) -> Block:
    """Return the only block of a workflow's body."""
    (only,) = declarations(workflow)[workflow.name].body
    return only


def steps(of: Block) -> list[StepStatement]:
    """Return the steps of a block."""
    return [statement for statement in of.statements if isinstance(statement, StepStatement)]


def yielded(of: Block) -> Expression:
    """Return the expression that a block yields as `result`."""
    (one,) = of.yields
    (argument,) = one.call.arguments
    assert argument.name == "result"
    return argument.value
