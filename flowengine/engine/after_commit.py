"""Drive runs on: what every part of the engine does after a commit."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from flowengine.dispatch import Notifier, NullNotifier
from flowengine.engine.committer import Committer
from flowengine.engine.completion import RunCompletions
from flowengine.engine.program_cache import Programs
from flowengine.engine.staging import Commit, ContinuationPolicy
from flowengine.evaluator import TaskDefinition
from flowengine.settings import Settings
from flowengine.store import Database
from flowengine.store.outages import is_away

log = logging.getLogger("flowengine")


class AfterCommit:
    """The part of an engine that advances runs and tells of it."""

    def __init__(
        self,
        database: Database,
        *,
        notifier: Notifier | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.database = database
        self.notifier: Notifier = notifier or NullNotifier()
        self.settings = settings or Settings()
        self.programs = Programs(allow_scripts=self.settings.scripts)
        self.completions = RunCompletions(database)
        self._committer = Committer(database, self.programs)

    def advance(
        self, run_id: str, continuation: ContinuationPolicy | None = None, *, wait: bool = True
    ) -> list[TaskDefinition]:
        """Take in what happened to a run, and decide what follows from it.

        Who is not `patient` leaves a run alone that somebody else has locked. Returns the tasks
        that the taker goes on with.
        """
        commit, _ = self._committer.under_lock(run_id, continuation=continuation, wait=wait)
        return self._after([commit], continuation)

    def _after(
        self, commits: Sequence[Commit], continuation: ContinuationPolicy | None = None
    ) -> list[TaskDefinition]:
        """Tell what was committed, and go on while the evaluator has left something.

        A run that waited for one that has ended comes next: one after the other, for runs may
        wait for each other in a long row.
        """
        taken: list[TaskDefinition] = []
        while commits:
            due: Counter[str] = Counter()
            for commit in commits:
                taken += commit.taken
                due.update(commit.due)
                self._told(commit)
            if due:
                self.notifier.notify(due)
            all_of_each = [self._go_on(commit, continuation, taken) for commit in commits]
            waiters = [whole.waiter for whole in all_of_each if whole.waiter]
            found = [self._taken_in(run_id, continuation) for run_id in waiters]
            commits = [commit for commit in found if commit is not None]
        return taken

    def _taken_in(self, run_id: str, continuation: ContinuationPolicy | None) -> Commit | None:
        """Let a run take in what it was told by another; what is wrong with it is its own."""
        try:
            return self._committer.under_lock(run_id, continuation=continuation)[0]
        except Exception as problem:
            if is_away(problem):
                raise
            log.exception("cannot advance run %s", run_id, extra={"action": "advance_failed"})
            return None

    def _go_on(
        self, commit: Commit, continuation: ContinuationPolicy | None, taken: list[TaskDefinition]
    ) -> Commit:
        """Let the evaluator finish what it has left; return all that was committed.

        Groups are told at the end: a foreach is unfolded over several commits, and its join
        is rung once.
        """
        whole = Commit(commit.run_id)
        whole.include(commit)
        while commit.has_more:
            next_commit = self._taken_in(commit.run_id, continuation)
            if next_commit is None:
                break
            commit = next_commit
            whole.include(commit)
            taken += commit.taken
            if commit.due:
                self.notifier.notify(commit.due)
            self._told(commit)
        if whole.groups:
            self.notifier.gather(commit.run_id, whole.groups.values())
        return whole

    def _told(self, commit: Commit) -> None:
        for path, said in commit.said:
            log.info("%s: %s", path, said, extra={"action": "sys.log", "run": commit.run_id})
        if commit.has_ended:
            self.completions.announce(commit.run_id)
