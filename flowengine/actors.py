"""Actors: who changes the course of a run, as every action records it."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from flowengine.errors import InvalidActor

MAX_LENGTH = 200  #: characters of a name
_RESEMBLING = 0.75  #: how near a text is to a kind that was meant: "tokn", "Token", "service"


class ActorKind(StrEnum):
    PERSON = "person"
    TOKEN = "token"  #: a program with a token: a build server, another service
    SCHEDULE = "schedule"
    SERVER = "server"  #: a process of the application, on nobody's behalf


@dataclass(frozen=True, slots=True)
class Actor:
    """A person, a token, a schedule or a server, by name: ``person:eva``."""

    kind: ActorKind
    name: str

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name) > MAX_LENGTH or not self.name.isprintable():
            raise InvalidActor(self.name, MAX_LENGTH)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @staticmethod
    def shown(recorded: str) -> str:
        """Return a recorded actor for readers: a person by the name alone."""
        return recorded.removeprefix(f"{ActorKind.PERSON}:")

    @classmethod
    def of(cls, who: Actor | str) -> Actor:
        """Return the actor of a text: a kind before a colon, or the name of a person.

        A misspelt kind is refused: it would be recorded as the name of a person.
        """
        if isinstance(who, Actor):
            return who
        if not isinstance(who, str):
            raise InvalidActor(repr(who), MAX_LENGTH)
        kind, colon, name = who.partition(":")
        if colon and kind in set(ActorKind):
            return cls(ActorKind(kind), name)
        if colon and (meant := get_close_matches(kind.strip().lower(), ActorKind, 1, _RESEMBLING)):
            raise InvalidActor(who, MAX_LENGTH, f"{meant[0]}:{name.strip()}")
        return cls(ActorKind.PERSON, who)
