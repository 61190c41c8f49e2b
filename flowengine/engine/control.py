"""Control of a run from outside: each action is a fact that the evaluator decides."""

from __future__ import annotations

import uuid
from typing import Any

from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import Committer
from flowengine.errors import ActionRefused, UnknownRun
from flowengine.evaluator.actions import ActionKind
from flowengine.settings import Settings
from flowengine.store import Store


class Control:
    def __init__(
        self, database: Store, committer: Committer, after_commit: AfterCommit, settings: Settings
    ) -> None:
        self._database, self._committer, self._after_commit = database, committer, after_commit
        self._tenant = settings.tenant

    def act(
        self,
        run_id: str,
        kind: ActionKind,
        *,
        actor: str = "",
        reason: str = "",
        step_key: str = "",
        options: dict[str, Any] | None = None,
    ) -> None:
        """Apply an action in one commit, or raise ActionRefused: nothing is changed then."""
        with self._database.read() as session:
            run = session.runs.get(run_id)
            now = session.now()
        if run is None or (self._tenant and run.tenant != self._tenant):
            raise UnknownRun(run_id)
        action_id = uuid.uuid4().hex
        about = {"actor": actor, "reason": reason, "at": now}
        fact = {"id": action_id, "kind": kind.value, "step_key": step_key, **about}
        fact["options"] = options or {}
        effects, _ = self._committer.commit_locked(run_id, fact=("Action", fact))
        self._after_commit.finish([effects])
        if (problem := effects.refusals.get(action_id)) is not None:
            raise ActionRefused(run_id, kind.value, problem)
