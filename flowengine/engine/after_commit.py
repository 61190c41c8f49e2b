"""After a commit: wake workers, complete waiting callers, and advance what the commit left open."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence

from flowengine.dispatch import Notifier
from flowengine.engine.committer import Committer
from flowengine.engine.completion import RunCompletions
from flowengine.engine.staging import CommitEffects, ContinuationPolicy
from flowengine.evaluator import TaskDefinition
from flowengine.store.outages import is_away

log = logging.getLogger("flowengine")


class AfterCommit:
    def __init__(
        self, committer: Committer, notifier: Notifier, completions: RunCompletions
    ) -> None:
        self._committer, self._notifier, self._completions = committer, notifier, completions

    def advance(
        self, run_id: str, continuation: ContinuationPolicy | None = None, *, wait: bool = True
    ) -> list[TaskDefinition]:
        """Consume a run's inbox, and return the tasks that the worker continues with.

        With `wait=False`, return at once if another transaction has locked the run.
        """
        effects, _ = self._committer.commit_locked(run_id, continuation=continuation, wait=wait)
        return self.finish([effects], continuation)

    def finish(
        self,
        commits: Sequence[CommitEffects],
        continuation: ContinuationPolicy | None = None,
        *,
        max_commits: float = math.inf,
    ) -> list[TaskDefinition]:
        """Handle the effects of commits; return the tasks that the worker continues with.

        After `max_commits` further commits of a run, the rest of its inbox is left to a worker.

        A parent run that waited for an ended run is advanced next. This is a loop, not a
        recursion: chains of waiting runs may be long. No two runs are locked at once.
        """
        continued: list[TaskDefinition] = []
        while commits:
            due: Counter[str] = Counter()
            for effects in commits:
                continued += effects.continued
                due.update(effects.due)
                self._announce(effects)
            if due:
                self._notifier.notify(due)
            drained = [
                self._drain_inbox(effects, continuation, continued, max_commits)
                for effects in commits
            ]
            parents = [effects.parent_run_id for effects in drained if effects.parent_run_id]
            advanced = [self.consume_inbox(run_id, continuation) for run_id in parents]
            commits = [effects for effects in advanced if effects is not None]
        return continued

    def consume_inbox(
        self, run_id: str, continuation: ContinuationPolicy | None
    ) -> CommitEffects | None:
        """Consume a run's inbox; log and return None if this run cannot be evaluated."""
        try:
            return self._committer.commit_locked(run_id, continuation=continuation)[0]
        except Exception as problem:
            if is_away(problem):
                raise
            log.exception(
                "run %s cannot be evaluated; recovery tries again",
                run_id,
                extra={"action": "advance_failed", "run": run_id},
            )
            return None

    def _drain_inbox(
        self,
        effects: CommitEffects,
        continuation: ContinuationPolicy | None,
        continued: list[TaskDefinition],
        max_commits: float,
    ) -> CommitEffects:
        """Commit until the run's inbox is empty; return the effects of all commits together.

        Groups are dispatched at the end: a foreach is expanded over several commits, and its
        join needs one chord.
        """
        total = CommitEffects(effects.run_id)
        total.include(effects)
        commits = 0
        while effects.has_more:
            if commits >= max_commits and self._notifier.evaluate(effects.run_id):
                break
            commits += 1
            later = self.consume_inbox(effects.run_id, continuation)
            if later is None:
                break
            effects = later
            total.include(effects)
            continued += effects.continued
            if effects.due:
                self._notifier.notify(effects.due)
            self._announce(effects)
        if total.groups:
            self._notifier.dispatch_groups(total.run_id, total.groups.values())
        return total

    def _announce(self, effects: CommitEffects) -> None:
        for path, params in effects.log_lines:
            log.info("%s: %s", path, params, extra={"action": "sys.log", "run": effects.run_id})
        if effects.has_ended:
            self._completions.announce(effects.run_id)
