"""Calls of tools in place: the try of a model call makes the quick ones that only read.

A tool that is declared with `effects=False` may be called again unnoticed. So its call need not
wait until the answer that asks for it is recorded: its result is recorded together with the answer,
in the result of the model call, and one commit leads to the next model call instead of two. All
other calls have a run each, and so has a call that fails in place: its run repeats it as declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.profiles import CALL
from flowengine.models import Answer
from flowengine.program.nodes import Json
from flowengine.store import codec
from flowengine.turns.machine import SUBMIT
from flowengine.turns.states import AfterExecution

#: Beside the fields of an answer: the results of calls in place, by the place of the call.
RESULTS = "tool_results"
CONTROL = "__cg_control"  #: in a result: what follows from it
_MOST_BYTES = codec.INLINE_BYTES  # of all results of one answer: larger ones have runs


class ToolInPlace(NamedTuple):
    """A call of a tool whose result is wanted at once."""

    place: int  #: among the calls of the answer
    facet: str
    program_hash: str  #: of its program, which declares the facet
    arguments: Mapping[str, Json]


class MakeInPlace(Protocol):
    """Makes calls in place; the layer of workers is above."""

    def __call__(
        self, answer: Mapping[str, Json], calls: Sequence[ToolInPlace]
    ) -> Mapping[int, Json]:
        """Return the results by place; a call that is left out needs a run.

        If the calls take too long, `answer` is recorded without them.
        """


def answer_with_results(
    answer: Answer, known: KnownProfile, make: MakeInPlace | None
) -> dict[str, Json]:
    """Return an answer as it is recorded, with the results of the calls that were made here."""
    written = answer.to_json()
    calls = () if make is None else _candidates(answer, known)
    if make is None or not calls:
        return written
    results, left = {}, _MOST_BYTES
    for place, result in make(written, calls).items():
        left -= len(codec.dump(result).encode())
        if left >= 0 and not (isinstance(result, dict) and CONTROL in result):
            results[str(place)] = result
    return {**written, RESULTS: results} if results else written


def results_of(written: object) -> dict[int, Json]:
    """Return the results of calls in place, by place, that are recorded beside an answer."""
    results = written.get(RESULTS) if isinstance(written, Mapping) else None
    if not isinstance(results, Mapping):
        return {}
    return {int(place): result for place, result in results.items() if str(place).isdecimal()}


def _candidates(answer: Answer, known: KnownProfile) -> list[ToolInPlace]:
    found = []
    for place, call in enumerate(answer.tool_calls):
        if call.name == SUBMIT:
            return []  # it must be the only call: the others are refused
        tool = known.profile.tool(call.name)
        if tool is None or call.unreadable or tool.approval or not tool.workflow.endswith(CALL):
            continue
        if tool.after_execution == AfterExecution.SUSPEND:
            digest = known.prepared(tool.workflow)[0]
            facet = tool.workflow.removesuffix(CALL)
            found.append(ToolInPlace(place, facet, digest, call.arguments))
    return found
