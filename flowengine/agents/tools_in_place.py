"""Calls of tools in place: the try of a model call makes the quick ones that only read.

Usually a call begins when the answer that asks for it is recorded: an effect must not happen again
because the model is asked again. A tool that is declared with `effects=False` has none. So it is
called at once, and its result is recorded together with the answer, as a part of the model call's
result: one commit leads to the next model call instead of two. If the try is lost, both are lost,
and made again.

All other calls have a run each. So has a call that fails in place: the run calls the tool again, at
once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.profiles import CALL
from flowengine.errors import FlowengineError, ValueRefused
from flowengine.models import Answer
from flowengine.program.nodes import Json
from flowengine.settings import Settings
from flowengine.store import codec
from flowengine.turns.machine import SUBMIT
from flowengine.turns.states import AfterExecution

log = logging.getLogger("flowengine")

# Beside the fields of an answer that a try has recorded.
RESULTS = "tool_results"  #: of calls in place, by the place of the call
NUMBER = "model_call"  #: the number of the model call in its turn
CONTROL = "__cg_control"  #: in a result: it overrides `after_execution` of the call


class ToolInPlace(NamedTuple):
    """A call of a tool that may be made in place."""

    place: int  #: among the calls of the answer
    facet: str
    program_hash: str  #: of the run that the call would be; it declares the facet
    arguments: Mapping[str, Json]
    timeout: float | None  #: seconds


class InPlace(Protocol):
    """Makes calls within the try of a model call; the layer of workers is above."""

    @property
    def lease(self) -> tuple[str, int]:
        """The task of the try, and the lease under which it is held."""

    def call_tools(
        self, answer: Mapping[str, Json], calls: Sequence[ToolInPlace]
    ) -> Mapping[int, Json]:
        """Return the results by place; a call that is left out needs a run.

        If the calls take too long, `answer` is recorded without them.
        """

    def may_go_on(self, seconds: float) -> bool:
        """Whether the try, which has taken so many seconds, may make the next model call."""


def answer_with_results(
    answer: Answer, number: int, known: KnownProfile, in_place: InPlace | None, settings: Settings
) -> dict[str, Json]:
    """Return an answer as it is recorded, with the results of the calls that were made here."""
    written = {**answer.to_json(), NUMBER: number}
    calls = () if in_place is None else _candidates(answer, known)
    if in_place is None or not calls:
        return written
    try:
        results = in_place.call_tools(written, calls)
    except Exception as problem:  # of the engine: it is no reason to lose the answer
        log.warning(
            "the tools of an answer are called by runs of their own: %s",
            problem,
            extra={"action": "tools_not_in_place"},
        )
        return written
    if not results:
        return written
    both: dict[str, Json] = {**written, RESULTS: {str(p): value for p, value in results.items()}}
    try:
        codec.check_value("an answer", both, settings.max_value_bytes, settings.max_json_depth)
    except ValueRefused:  # together they exceed a limit that neither does alone
        return written
    return both


def results_of(written: object) -> dict[int, Json]:
    """Return the results of calls in place, by place, that are recorded beside an answer."""
    results = written.get(RESULTS) if isinstance(written, Mapping) else None
    if not isinstance(results, Mapping):
        return {}
    return {int(place): result for place, result in results.items() if str(place).isdecimal()}


def number_of(written: object) -> int | None:
    """Return the number of the model call; None: a person, or an older version, has answered."""
    number = written.get(NUMBER) if isinstance(written, Mapping) else None
    return number if isinstance(number, int) else None


def _candidates(answer: Answer, known: KnownProfile) -> list[ToolInPlace]:
    found = []
    for place, call in enumerate(answer.tool_calls):
        if call.name == SUBMIT:
            return []  # it must be the only call: the others are refused
        tool = known.profile.tool(call.name)
        if tool is None or call.unreadable or tool.approval or not tool.workflow.endswith(CALL):
            continue
        if tool.after_execution == AfterExecution.SUSPEND:
            with suppress(FlowengineError):  # the decision refuses a tool that cannot be used
                digest, facet = known.prepared(tool.workflow)[0], tool.workflow.removesuffix(CALL)
                found.append(ToolInPlace(place, facet, digest, call.arguments, tool.timeout))
    return found
