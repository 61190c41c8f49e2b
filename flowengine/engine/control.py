"""Control of runs from outside: each action is a fact that the evaluator decides."""

from __future__ import annotations

import platform
import uuid
from typing import Any, TypedDict, Unpack

from flowengine.actors import Actor, ActorKind
from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import Committer, NewFact
from flowengine.engine.program_cache import PreparedProgram
from flowengine.engine.staging import CommitEffects
from flowengine.errors import ActionRefused, UnknownRun
from flowengine.evaluator.actions import ActionKind
from flowengine.evaluator.triggers import Action
from flowengine.program.limits import clipped
from flowengine.settings import Settings
from flowengine.store import Store
from flowengine.store.failures import KeyTaken

_LONGEST_KEY = 255  # characters


class ActionOptions(TypedDict, total=False):
    """The options of every action; see `Control.act`."""

    reason: str
    actor: Actor | str
    key: str | None


class Control:
    def __init__(
        self, database: Store, committer: Committer, after_commit: AfterCommit, settings: Settings
    ) -> None:
        self._database, self._committer, self._after_commit = database, committer, after_commit
        self._tenant, self._max_reason = settings.tenant, settings.max_error_excerpt

    def act(
        self,
        run_id: str,
        kind: ActionKind,
        *,
        actor: Actor | str = "",
        reason: str = "",
        step_key: str = "",
        options: dict[str, Any] | None = None,
        key: str | None = None,
        program: PreparedProgram | None = None,
        dry_run: bool = False,
    ) -> None:
        """Apply an action in one commit, or raise ActionRefused: nothing is changed then.

        A second action of the run with the same `key` changes nothing. Without an actor the action
        is recorded as that of this server. With `program` the run is moved to it before. A
        `dry_run` only raises.
        """
        who = named_actor(actor)
        if not isinstance(reason, str):
            raise ActionRefused(run_id, kind.value, f"its reason must be a text, not {reason!r}")
        with self._database.read() as session:
            run = session.runs.get(run_id)
            now = session.now()
        if run is None or (self._tenant and run.tenant != self._tenant):
            raise UnknownRun(run_id)
        if key is not None and not 0 < len(key) <= _LONGEST_KEY:
            problem = f"its key must have 1 to {_LONGEST_KEY} characters"
            raise ActionRefused(run_id, kind.value, problem)
        action_id = uuid.uuid4().hex
        if dry_run:
            action = Action(action_id, kind, who, reason, now, step_key, options or {})
            if problem := self._committer.preview(run_id, action):
                raise ActionRefused(run_id, kind.value, problem)
            return
        if program is not None:
            self._after_commit.advance(run_id)  # by its program so far
        about = {"actor": who, "reason": clipped(reason, self._max_reason), "at": now}
        fact = {"id": action_id, "kind": kind.value, "step_key": step_key, **about}
        fact["options"] = options or {}
        effects = self._commit(run_id, NewFact("Action", fact, action_id, key), program)
        self._after_commit.finish([effects])
        if (problem := effects.refusals.get(action_id, "")) != "":
            raise ActionRefused(run_id, kind.value, problem)

    def _commit(self, run_id: str, fact: NewFact, program: PreparedProgram | None) -> CommitEffects:
        try:
            return self._committer.commit_locked(run_id, fact=fact, program=program)[0]
        except KeyTaken:
            # Another run has got the singleton key since the check, which finds it now.
            return self._committer.commit_locked(run_id, fact=fact, program=program)[0]

    def cancel(self, run_id: str, **options: Unpack[ActionOptions]) -> None:
        """Cancel a run: its always blocks run, then it is CANCELLED.

        Raises ActionRefused for a run that has completed or failed. Cancelling a run that is
        cancelled already changes nothing.
        """
        self.act(run_id, ActionKind.CANCEL, **options)

    def hold(self, run_id: str, **options: Unpack[ActionOptions]) -> None:
        """Keep workers from the tasks of a run; those that run may end."""
        self.act(run_id, ActionKind.HOLD, **options)

    def release(self, run_id: str, **options: Unpack[ActionOptions]) -> None:
        """Let workers claim the tasks of a held run again."""
        self.act(run_id, ActionKind.RELEASE, **options)


def named_actor(actor: Actor | str) -> str:
    """Return an actor as it is recorded: without one, this server."""
    return str(Actor.of(actor) if actor else Actor(ActorKind.SERVER, platform.node() or "?"))
