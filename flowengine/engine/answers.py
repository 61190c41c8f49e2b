"""Answers from outside to steps that wait for them by a name."""

from __future__ import annotations

import uuid
from typing import Any

from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import Committer
from flowengine.errors import AnswerRefused, UnknownRun
from flowengine.settings import Settings
from flowengine.store import Store, codec


class Answers:
    def __init__(
        self, database: Store, committer: Committer, after_commit: AfterCommit, settings: Settings
    ) -> None:
        self._database, self._committer, self._after_commit = database, committer, after_commit
        self._tenant = settings.tenant
        self._value_limits = (settings.max_value_bytes, settings.max_json_depth)

    def send(self, run_id: str, name: str, value: Any = None, *, actor: str = "") -> None:
        """Answer the step of a run that waits for `name`, or will.

        An answer before the step begins is kept for it. Raises AnswerRefused for an answer that
        does not fit, comes too late, or is a second one.
        """
        codec.check_names("the name of an answer", {name: None})
        codec.check_value(f"the answer {name!r}", value, *self._value_limits)
        with self._database.read() as session:
            run = session.runs.get(run_id)
            now = session.now()
        if run is None or (self._tenant and run.tenant != self._tenant):
            raise UnknownRun(run_id)
        answer_id = uuid.uuid4().hex
        fact = {"id": answer_id, "name": name, "value": value, "actor": actor, "at": now}
        effects, _ = self._committer.commit_locked(run_id, fact=("Answer", fact))
        self._after_commit.finish([effects])
        if (reason := effects.refusals.get(answer_id)) is not None:
            raise AnswerRefused(run_id, name, reason)
