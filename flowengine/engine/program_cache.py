"""The program cache: programs of runs, linked once per process."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flowengine.errors import InvalidProgram, Problem
from flowengine.program import Plan, Program, link_program, parse_program, write_program
from flowengine.program.limits import Limits, check_document, program_too_large
from flowengine.program.serializer import document_text, text_hash
from flowengine.program.standard import SCRIPT
from flowengine.settings import Settings
from flowengine.store import Session, Store

_MAX_PROGRAMS = 128
_LATELY = 3_600_000  #: milliseconds


PreparedProgram = tuple[str, str, Plan]  #: hash, text and plan


class ProgramCache:
    """Stores programs and returns their plans. Shared by all threads of a process."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._limits = Limits.of(settings)
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._last: tuple[str, Plan | None] = ("", None)  #: the plan that was asked for last
        self._prepared: dict[int, tuple[Program, str, str, Plan]] = {}
        self._saved: dict[str, tuple[int, int]] = {}  #: by digest: generation of the store, time
        self._asked: dict[str, int] = {}  #: by digest: when it was written, not yet committed
        self._lock = threading.Lock()

    def prepare(self, program: Program | Mapping[str, Any]) -> PreparedProgram:
        """Check a program; return its hash, its text and its plan."""
        with self._lock:
            prepared = self._prepared.get(id(program))
        if prepared is not None:
            return prepared[1:]
        if isinstance(program, Program):
            parsed = program
        else:
            parsed = parse_program(dict(program), self._limits)
        text = self._checked_text(parsed)
        digest = text_hash(text)
        kept = self.known(digest)
        allowed = self._settings.scripts
        if kept is None or kept.is_stored or (SCRIPT in kept.facets and not allowed):
            kept = self._link(digest, parsed, allow_scripts=allowed)
        found = digest, text, kept
        if isinstance(program, Program):  # it cannot change; a map can
            with self._lock:
                if len(self._prepared) >= _MAX_PROGRAMS:
                    self._prepared.clear()
                # Kept with it, so that its id is not given to another.
                self._prepared[id(program)] = (program, *found)
        return found

    def save(self, session: Session, digest: str, text: str, now: int) -> None:
        """Store a program, unless this process has stored it lately, in this generation.

        Retention removes programs without runs that were not stored for a day: a run that is
        started within the hour finds its program.
        """
        generation, at = self._saved.get(digest, (-1, 0))
        if text and (generation != self._store.generation or not 0 <= now - at < _LATELY):
            session.payloads.save_program(digest, text, now)
            self._asked[digest] = now

    def saved(self, digest: str) -> None:
        """Note that a program is stored, and committed."""
        if (now := self._asked.pop(digest, None)) is not None:
            self._saved[digest] = self._store.generation, now

    def plan(self, session: Session, digest: str) -> Plan:
        if kept := self.known(digest):
            return kept
        stored = session.payloads.load_program(digest)
        # The process that started the run had allowed its scripts; here they are only evaluated.
        # It had checked its depth, too, and may have other limits.
        unlimited = replace(self._limits, max_program_depth=sys.maxsize)
        program = parse_program(stored, unlimited)
        return self._link(digest, program, allow_scripts=True, is_stored=True)

    def _checked_text(self, program: Program) -> str:
        """Return the text of a program; refuse it if it is too long or nested too deeply."""
        try:
            document = write_program(program)
            check_document(document, self._limits)
            text = document_text(document)
        except RecursionError:
            raise InvalidProgram([Problem("", "the program is nested too deeply")]) from None
        if len(text) > self._limits.max_program_bytes:
            raise program_too_large(len(text), self._limits.max_program_bytes)
        return text

    def _link(
        self, digest: str, program: Program, *, allow_scripts: bool, is_stored: bool = False
    ) -> Plan:
        plan = link_program(
            program, allow_scripts=allow_scripts, is_stored=is_stored, limits=self._limits
        )
        with self._lock:
            self._plans[digest] = plan
            self._last = digest, plan  # in place of an earlier plan of the program
            while len(self._plans) > _MAX_PROGRAMS:
                self._plans.popitem(last=False)
        return plan

    def stored(self, session: Session, digest: str) -> tuple[str, str, Plan]:
        """Return the same as `prepare`, for a program that is stored: its text is empty."""
        return digest, "", self.plan(session, digest)

    def known(self, digest: str) -> Plan | None:
        """Return the plan of a program that this process has met before."""
        last, plan = self._last
        if last == digest:  # in most processes a program is asked for many times in a row
            return plan
        with self._lock:
            plan = self._plans.get(digest)
            if plan is not None:
                self._plans.move_to_end(digest)
                self._last = digest, plan
            return plan
