"""Model calls in place: the try of a model call makes the next one, too.

An answer whose calls were all made in place leads to the next model call at once. Usually that is a
run of its own, which costs more than the answer: the end of one run, the rows of another, and two
evaluations. Here the try records the answer, in one statement that is guarded by the head of the
agent and by the lease of the try, and asks the model again. So every answer is recorded before the
model is asked again, as always. A try that dies is repeated from the last recorded answer: the next
try enters the turn as it is now.

The last answer is the result of the try, with its number. If the connection is lost while an answer
is recorded, the try reports that answer, and the number tells whether it was recorded already.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from flowengine.agents.asked_calls import model_answered
from flowengine.agents.call_runs import CallRuns
from flowengine.agents.entries import Entered
from flowengine.agents.head_cache import HeadCache, KnownHead
from flowengine.agents.tools_in_place import results_of
from flowengine.agents.turn_effects import TurnEffects
from flowengine.agents.turn_writer import TurnWriter
from flowengine.engine.engine import Engine
from flowengine.models import Answer
from flowengine.program.nodes import Json
from flowengine.store.agent_rows import HeadMessages
from flowengine.store.commits import CommitPlan, CommitRefused
from flowengine.turns import machine
from flowengine.turns.records import Changes, Head, Turn

log = logging.getLogger("flowengine")


class _Agents(Protocol):
    heads: HeadCache
    runs: CallRuns


def has_all_results(answer: Answer, written: Mapping[str, Json]) -> bool:
    """Whether every call of an answer was made in place, so that the model can be asked again."""
    return bool(answer.tool_calls) and len(results_of(written)) == len(answer.tool_calls)


def record(
    engine: Engine,
    agents: _Agents,
    entered: Entered,
    answer: Answer,
    written: Mapping[str, Json],
    lease: tuple[str, int],
) -> bool:
    """Record an answer with all its results, and enter the model call that follows.

    False: the answer is left to the report of the try, because the turn ends, because another
    process has changed the agent, or because the try has lost its lease.
    """
    known, profile = entered.known, entered.profile
    head, turn = known.head, known.turn.copied()
    try:
        now = engine.database.now()
        changes = _decision(agents.runs, entered, turn, answer, written, now)
        if changes is None:
            return False
        plan = CommitPlan()
        writer = TurnWriter(agents.runs, plan, TurnEffects(), now, HeadMessages.NONE)
        after = writer.write(turn, profile, head, changes)
        assert plan.agents is not None
        plan.agents.held_task = lease
        with engine.database.optimistic() as session:
            session.commit(plan, guarded=True)
    except CommitRefused:
        return _left_to_the_report(agents, head)
    except Exception as problem:  # of the engine: it is no reason to lose the answer
        log.warning(
            "an answer of turn %s is recorded by the report of its try: %s",
            turn.id,
            problem,
            extra={"action": "answer_not_in_place", "agent": turn.agent},
        )
        return _left_to_the_report(agents, head)
    following = KnownHead(after, turn, (), known.context, known.output, known.room)
    following.append(changes.cards, now)
    agents.heads.keep(following)
    return True


def _decision(
    runs: CallRuns,
    entered: Entered,
    turn: Turn,
    answer: Answer,
    written: Mapping[str, Json],
    now: int,
) -> Changes | None:
    """Return the decision about an answer if the next model call follows."""
    head, profile = entered.known.head, entered.profile
    about = (profile, runs.max_checks, results_of(written), turn.steps)
    answered = model_answered(head.run_id or "", answer, *about)
    trigger = replace(answered, is_followed_in_place=True)
    changes = machine.decide(head, turn, (), trigger, runs.rules(profile), now)
    is_followed = changes is not None and changes.model_call is not None
    return changes if is_followed else None


def _left_to_the_report(agents: _Agents, head: Head) -> bool:
    # The cache may be behind the database now: the report reads the agent.
    agents.heads.take(head.project, head.agent)
    return False
