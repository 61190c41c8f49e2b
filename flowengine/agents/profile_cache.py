"""Profiles that this process has met, with the programs of their calls."""

from __future__ import annotations

import threading
from collections import OrderedDict

from flowengine.agents.profiles import Profile
from flowengine.engine.program_cache import PreparedProgram, ProgramCache
from flowengine.program import Program, parse_program
from flowengine.store import Session

_MOST = 256


class KnownProfile:
    """A profile, and its programs, each parsed once."""

    def __init__(self, profile: Profile, programs: ProgramCache) -> None:
        self.profile, self._programs = profile, programs
        self._parsed: dict[str, Program] = {}

    def deadline(self, now: int) -> int | None:
        """Return the end of a turn's budget of seconds if it is dispatched now."""
        seconds = self.profile.max_seconds
        return None if seconds is None else now + round(seconds * 1000)

    def prepared(self, workflow: str) -> PreparedProgram:
        """Return the program of the model calls, or of a tool, by its workflow."""
        program = self._parsed.get(workflow)
        if program is None:
            texts = {tool.workflow: tool.program for tool in self.profile.tools}
            texts[self.profile.workflow] = self.profile.program
            program = self._parsed[workflow] = parse_program(dict(texts[workflow]))
        return self._programs.prepare(program)


class ProfileCache:
    """Shared by the threads of a process. A profile is immutable, as its id is its hash."""

    def __init__(self, programs: ProgramCache) -> None:
        self._programs = programs
        self._known: OrderedDict[str, KnownProfile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, session: Session, project: str, profile_id: str) -> KnownProfile | None:
        """Return a profile; None: its card is not there."""
        with self._lock:
            known = self._known.get(profile_id)
            if known is not None:
                self._known.move_to_end(profile_id)
                return known
        card = session.cards.get(project, profile_id)
        return None if card is None else self.keep(profile_id, Profile.from_json(card.content))

    def of(self, profile: Profile) -> KnownProfile:
        """Return a profile that this process has defined."""
        with self._lock:
            known = self._known.get(profile.id)
        return known or self.keep(profile.id, profile)

    def keep(self, profile_id: str, profile: Profile) -> KnownProfile:
        known = KnownProfile(profile, self._programs)
        with self._lock:
            self._known[profile_id] = known
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        return known
