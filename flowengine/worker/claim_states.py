"""The state machine of a claimed task: one entry per task and lease, as a table.

Like the tables of the evaluator, every state has a row, the final ones too, and `next_state` is
the only way from one state to another. The state describes the work of this process. The database
alone decides who holds the lease.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowengine.errors import IllegalTransition


class ClaimState:
    """Plain strings, as in the evaluator: comparing them in the hot loop costs nothing."""

    UNKNOWN = "unknown"  #: the process has no entry for this task and lease
    CLAIMED = "claimed"  #: not started
    STARTED = "started"  #: the facet runs
    FINISHED = "finished"  #: the outcome is known to this process alone
    SPOOLED = "spooled"  #: the report is kept until the database accepts it
    REPORTED = "reported"  #: the database has accepted or refused the report
    RELEASED = "released"
    PARKED = "parked"
    DISOWNED = "disowned"  #: nobody here works on it, though the database may list it as ours

    FINAL = frozenset({REPORTED, RELEASED, PARKED, DISOWNED})
    ACTIVE = frozenset({CLAIMED, STARTED, FINISHED})  #: a process that ends waits for these


class ClaimEvent:
    CLAIM = "claim"
    START = "start"
    FINISH = "finish"
    REPORT = "report"
    SPOOL = "spool"
    DELIVER = "deliver"  #: the database has accepted or refused a spooled report
    RELEASE = "release"
    PARK = "park"
    DISOWN = "disown"


_S, _E = ClaimState, ClaimEvent

CLAIM_TRANSITIONS: Mapping[str, Mapping[str, str]] = {
    # A claim may be committed and its response lost with the connection: DISOWN without CLAIM.
    _S.UNKNOWN: {_E.CLAIM: _S.CLAIMED, _E.DISOWN: _S.DISOWNED},
    _S.CLAIMED: {
        _E.START: _S.STARTED,
        _E.RELEASE: _S.RELEASED,
        _E.PARK: _S.PARKED,
        _E.DISOWN: _S.DISOWNED,  # it could not be released or parked
    },
    _S.STARTED: {
        _E.FINISH: _S.FINISHED,
        _E.SPOOL: _S.SPOOLED,  # its outcome is a child run that could not be started yet
        _E.RELEASE: _S.RELEASED,  # the process ends
    },
    # Invariant: a finished task is never released, for its second run would not be counted.
    _S.FINISHED: {_E.REPORT: _S.REPORTED, _E.SPOOL: _S.SPOOLED},
    # Invariant: a spooled task stays claimed until its report is delivered, or is gone.
    _S.SPOOLED: {_E.DELIVER: _S.REPORTED, _E.DISOWN: _S.DISOWNED},
    _S.REPORTED: {},
    # The facet goes on after its task was released, and its outcome is ignored.
    _S.RELEASED: {_E.FINISH: _S.RELEASED, _E.SPOOL: _S.RELEASED},
    _S.PARKED: {},
    # The response to a claim may arrive after its task was disowned, and is ignored then.
    _S.DISOWNED: {_E.CLAIM: _S.DISOWNED},
}


def next_state(task_id: str, state: str, event: str) -> str:
    """Return where the event leads, or raise `IllegalTransition`."""
    try:
        return CLAIM_TRANSITIONS[state][event]
    except KeyError:
        raise IllegalTransition(f"claimed task {task_id}", state, event) from None
