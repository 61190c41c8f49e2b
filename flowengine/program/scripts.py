"""Script blocks: text in a language, run as an event of a built-in facet.

A script is given the parameters and results of its step so far as ``params``, and fills the
map ``result``. For the evaluator it is an event like any other; who runs it, and how it is
kept in bounds, is the worker's matter.
"""

from __future__ import annotations

from flowengine.program.nodes import (
    EventOptions,
    FacetDeclaration,
    FacetKind,
    Field,
    Literal,
    ScriptBlock,
    StepRef,
)
from flowengine.program.plan import (
    BlockPlan,
    FacetPlan,
    StatementKind,
    StatementPlan,
    StepSource,
)

SCRIPT = "flowengine.script"  #: the facet
SCRIPT_LIST = "scripts"  #: its task list: scripts are never in the way of other work
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
    """The step that runs a script; `hops` lead from its scope row to the step it is of."""
    kind = StatementKind.CALL if hops else StatementKind.SCRIPT
    plan = StatementPlan(f"{address}/script", 0, "script", kind, block, facet)
    plan.arguments = (("code", Literal(script.code)), ("params", StepRef((_OWNER,))))
    plan.sources.steps[_OWNER] = StepSource(hops, None)
    return plan
