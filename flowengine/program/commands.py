"""The facets that run commands, as declarations: documents call them without their code.

`flowengine.library` has the code; its signatures are these.
"""

from __future__ import annotations

from flowengine.program.nodes import ArrayType, FacetDeclaration, FacetKind, Field, Json, Literal

NAMESPACE = "command"
RUN, SH, UV = f"{NAMESPACE}.run", f"{NAMESPACE}.sh", f"{NAMESPACE}.uv"
#: The fields of the result of a command.
FIELDS = ("exit_code", "signal", "stdout", "output")


def _field(name: str, type: str | ArrayType = "Json", *default: Json) -> Field:
    return Field(name, type, Literal(default[0]) if default else None)


def _facet(name: str, *params: Field) -> FacetDeclaration:
    short = name.rpartition(".")[2]
    return FacetDeclaration(FacetKind.EVENT, short, params=params, returns=(Field("result"),))


_STDIN, _ENV = _field("stdin", "String", ""), _field("env", "Json", None)
_DIRECTORY = _field("directory", "String", "")
COMMANDS = {
    RUN: _facet(RUN, _field("command", ArrayType("String")), _STDIN, _ENV, _DIRECTORY),
    SH: _facet(SH, _field("script", "String"), _field("values", "Json", None), _STDIN, _DIRECTORY),
    UV: _facet(
        UV,
        _field("script", "String"),
        _field("packages", "Json", None),
        _field("args", "Json", None),
        _STDIN,
        _DIRECTORY,
        _ENV,
        _field("project", "Boolean", False),
        _field("program", "String", "uv"),
    ),
}
#: The setting is off by default: with it, authors of programs can run code on the worker.
CURE = "set FLOWENGINE_COMMANDS=on for a worker that may run them"
