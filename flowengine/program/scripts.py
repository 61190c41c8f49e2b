"""Script blocks: text in a language, run as an event of a built-in facet.

A script reads the parameters and results of its step so far as ``params``, and fills the map
``result``. For the evaluator it is an event like any other; the worker runs it and limits its
time and memory.
"""

from __future__ import annotations

from flowengine.program.addresses import StepSource
from flowengine.program.nodes import (
    EventOptions,
    FacetDeclaration,
    FacetKind,
    Field,
    Literal,
    ScriptBlock,
    StepRef,
)
from flowengine.program.plan import BlockPlan, FacetPlan, StatementKind, StatementPlan

SCRIPT = "flowengine.script"  #: the facet
SCRIPT_LIST = "scripts"  #: its task list: scripts do not delay other work
_OWNER = "$step"  # no step can have that name

_DECLARATION = FacetDeclaration(
    FacetKind.EVENT,
    SCRIPT,
    params=(Field("code", "String"), Field("params")),
    returns=(Field("result"),),
    options=EventOptions(task_list=SCRIPT_LIST),
)


def script_facet() -> FacetPlan:
    return FacetPlan(SCRIPT, _DECLARATION)


def script_statement(
    script: ScriptBlock, facet: FacetPlan, block: BlockPlan, address: str, *, hops: int
) -> StatementPlan:
    """The step that runs a script; `hops` are the links from its scope row to its owner."""
    kind = StatementKind.CALL if hops else StatementKind.SCRIPT
    plan = StatementPlan(f"{address}/script", 0, "script", kind, block, facet)
    plan.arguments = (("code", Literal(script.code)), ("params", StepRef((_OWNER,))))
    plan.sources.steps[_OWNER] = StepSource(hops, None)
    return plan
