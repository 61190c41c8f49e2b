"""Answers from outside to steps that wait for them by a name."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from flowengine.answer_links import AnswerLinks, LinkedAnswer
from flowengine.engine.after_commit import AfterCommit
from flowengine.engine.committer import Committer, NewFact
from flowengine.errors import AnswerRefused, UnknownRun
from flowengine.evaluator import Step
from flowengine.evaluator.states import MailboxState
from flowengine.evaluator.triggers import Answer, mailbox_key
from flowengine.evaluator.waits import next_wait
from flowengine.settings import Settings
from flowengine.store import Session, Store, codec
from flowengine.store.runs import StoredRun

#: The value of a link that asks for it.
ASK: Any = object()


class Answers:
    def __init__(
        self, database: Store, committer: Committer, after_commit: AfterCommit, settings: Settings
    ) -> None:
        self._database, self._committer, self._after_commit = database, committer, after_commit
        self._tenant = settings.tenant
        self._value_limits = (settings.max_value_bytes, settings.max_json_depth)
        self._links = AnswerLinks(settings.link_keys, settings.link_url)

    def send(
        self,
        run_id: str,
        name: str,
        value: Any = None,
        *,
        actor: str = "",
        wait: int | None = None,
    ) -> bool:
        """Answer the step of a run that waits for `name`, or will.

        Returns whether a step has taken it: an answer before the step begins is kept for it.
        Raises AnswerRefused for an answer that fits no step of the run's program, comes too late,
        or is a second one. With `wait`, the number of a wait for this name, it answers no other.
        """
        self._check(name, value)
        answer = Answer(uuid.uuid4().hex, name, value, actor, self._database.now(), wait)
        effects = self._committer.commit_answer(run_id, answer, self._tenant)
        may_be_kept = effects is None
        if effects is None:
            with self._database.read() as session:
                self._run(session, run_id)
            effects, _ = self._committer.commit_locked(
                run_id, fact=NewFact("Answer", asdict(answer))
            )
        self._after_commit.finish([effects])
        if (reason := effects.refusals.get(answer.id)) is not None:
            raise AnswerRefused(run_id, name, reason)
        return not (may_be_kept and self._is_kept(run_id, answer))

    def answer_link(
        self,
        run_id: str,
        name: str,
        value: Any = ASK,
        *,
        actor: str = "",
        valid_for: timedelta = timedelta(days=7),
    ) -> str:
        """Return a signed link with which its holder gives this answer to the run, once.

        It is for the wait that the run is at, or for the next one. Without `value` the page of the
        link asks for it. `actor` is the person who gets the link: it is recorded as the author of
        the answer. Needs the settings `link_keys` and `link_url`.
        """
        has_value = value is not ASK
        self._check(name, value if has_value else None)
        with self._database.read() as session:
            self._run(session, run_id)
            expires = session.now() + round(valid_for / timedelta(milliseconds=1))
            wait, _ = self._waiting(session, run_id, name)
        given = value if has_value else None
        linked = LinkedAnswer(run_id, name, actor, expires, has_value, given, wait)
        return self._links.sign(linked)

    def read_link(self, link: str) -> LinkedAnswer:
        """Return the contents of a link; raise LinkRefused if it is forged, cut or expired."""
        return self._links.read(link, self._database.now())

    def open_link(self, link: str) -> tuple[LinkedAnswer, Mapping[str, Any] | None]:
        """Return the contents of a link, and the JSON Schema of the answer if a step waits for it.

        Raises LinkRefused as `read_link`, and AnswerRefused if the link was used, or is for another
        wait than that which the run is at.
        """
        linked = self.read_link(link)
        with self._database.read() as session:
            self._run(session, linked.run_id)
            wait, step = self._waiting(session, linked.run_id, linked.name)
        if wait != linked.wait:
            reason = f"{linked.name!r} was answered, or the run has stopped waiting for it"
            raise AnswerRefused(linked.run_id, linked.name, reason)
        schema = None if step is None else step.params.get("schema")
        return linked, schema if isinstance(schema, Mapping) else None

    def send_link(self, link: str, value: Any = None) -> None:
        """Give the answer of a link; `value` is used if the link holds none."""
        linked = self.read_link(link)
        given = linked.value if linked.has_value else value
        self.send(linked.run_id, linked.name, given, actor=linked.actor, wait=linked.wait)

    def _waiting(self, session: Session, run_id: str, name: str) -> tuple[int, Step | None]:
        """Return the number of the wait that the next answer is for, and the step that waits."""
        key = mailbox_key(name)
        box = session.steps.load({run_id: {key}}).get(run_id, {}).get(key)
        if box is None:
            return 0, None
        number: int = box.params.get("wait", 0)
        if box.state == MailboxState.WAITING:
            step_key = box.params["step"]
            step = session.steps.load({run_id: {step_key}}).get(run_id, {}).get(step_key)
            if step is not None and step.id == box.params["id"] and not step.is_final:
                return number, step
        return next_wait(box.state, box.params), None

    def _is_kept(self, run_id: str, answer: Answer) -> bool:
        key = mailbox_key(answer.name)
        with self._database.read() as session:
            box = session.steps.load({run_id: {key}}).get(run_id, {}).get(key)
        if box is None or box.state != MailboxState.KEPT:
            return False
        return bool(box.params.get("answer") == answer.id)

    def _check(self, name: str, value: Any) -> None:
        codec.check_names("the name of an answer", {name: None})
        codec.check_value(f"the answer {name!r}", value, *self._value_limits)

    def _run(self, session: Session, run_id: str) -> StoredRun:
        run = session.runs.get(run_id)
        if run is None or (self._tenant and run.tenant != self._tenant):
            raise UnknownRun(run_id)
        return run
