"""The calls that a model asks for, checked against its tools before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from flowengine.agents.profile_cache import KnownProfile
from flowengine.agents.profiles import Profile, ToolProfile
from flowengine.errors import FlowengineError
from flowengine.models import Answer, StopReason, ToolCall
from flowengine.program.limits import clipped
from flowengine.program.nodes import Json
from flowengine.program.types import misfits
from flowengine.program.validator import Checks, schema_misfit
from flowengine.turns.delivery import submitted
from flowengine.turns.machine import SUBMIT
from flowengine.turns.records import AskedCall, ModelAnswered
from flowengine.turns.states import AfterExecution

_LONGEST = 2_000  #: characters of a problem that the model reads
#: Codes of answers that end a turn with the text so far.
_PROBLEMS = {StopReason.MAX_TOKENS: "answer_cut_off", StopReason.DECLINED: "model_declined"}


def model_answered(
    run_id: str,
    answer: Answer,
    known: KnownProfile,
    max_checks: int,
    results: Mapping[int, Json],
    number: int | None,
) -> ModelAnswered:
    """Return an answer as the trigger of a decision; `results` are those of calls in place."""
    usage = answer.usage
    tokens = usage.input_tokens + usage.output_tokens
    tokens += usage.cache_read_tokens + usage.cache_write_tokens
    calls = tuple(_asked(call, known, max_checks) for call in answer.tool_calls)
    if results:
        calls = tuple(
            replace(call, is_made_in_place=True, result=results[place])
            if place in results and _may_be_in_place(call)
            else call
            for place, call in enumerate(calls)
        )
    problem = "" if calls else _PROBLEMS.get(answer.stop_reason, "")
    return ModelAnswered(
        run_id,
        answer.text,
        answer.to_json(),
        calls,
        tokens,
        problem,
        goes_on=answer.stop_reason == StopReason.PAUSED,
        number=number,
    )


def _may_be_in_place(call: AskedCall) -> bool:
    return not call.needs_approval and call.after_execution == AfterExecution.SUSPEND


def _asked(call: ToolCall, known: KnownProfile, max_checks: int) -> AskedCall:
    profile = known.profile
    arguments: dict[str, Json] = dict(call.arguments)
    if call.unreadable:
        problem = f"the arguments are no JSON object: {call.unreadable}"
        return AskedCall(call.name, call.id, {}, clipped(problem, _LONGEST))
    if call.name == SUBMIT and profile.result is not None:
        return _submission(call, profile, max_checks)
    tool = profile.tool(call.name)
    if tool is None:
        offered = ", ".join(t.name for t in profile.tools) or "none"
        problem = f"there is no tool {call.name!r}; the tools are: {offered}"
        return AskedCall(call.name, call.id, arguments, clipped(problem, _LONGEST))
    return AskedCall(
        call.name,
        call.id,
        arguments,
        clipped(argument_problem(known, tool, arguments, max_checks), _LONGEST),
        after_execution=tool.after_execution,
        timeout=None if tool.timeout is None else round(tool.timeout * 1000),
        needs_approval=tool.approval,
    )


def argument_problem(
    known: KnownProfile, tool: ToolProfile, arguments: Mapping[str, Json], max_checks: int
) -> str:
    """Return why a tool cannot be called with these arguments; empty if it can."""
    try:
        _, _, plan = known.prepared(tool.workflow)
        facet = plan.workflow(tool.workflow)
    except FlowengineError as problem:
        return f"the tool cannot be used: {problem}"
    names = [field.name for field in facet.params]
    problems = [
        f"{name!r} is unknown, it takes {', '.join(names) or 'nothing'}"
        for name in arguments
        if name not in names
    ]
    problems += [
        f"{field.name!r} is missing"
        for field in facet.params
        if field.default is None and field.name not in arguments
    ]
    problems += misfits(facet.params, arguments, facet.schemas, Checks(max_checks))
    return "; ".join(problems)


def _submission(call: ToolCall, profile: Profile, max_checks: int) -> AskedCall:
    result = profile.result
    assert result is not None
    fields, problem = submitted(call.arguments, result.fields)
    if not problem:
        problem = schema_misfit(result.schema, dict(fields), Checks(max_checks))
    return AskedCall(
        call.name,
        call.id,
        dict(call.arguments),
        clipped(problem, _LONGEST),
        is_submit=True,
        fields=fields,
    )
