"""Which faults happen when: drawn from a seed, so that a failure can be repeated."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.acceptance.chaos.faults import FAULTS

ROUNDS = 8
LONGEST = 6.0  #: seconds that a fault lasts at most


@dataclass(frozen=True, slots=True)
class Round:
    """Faults that last together, some time after the round's runs were started."""

    faults: tuple[str, ...]
    delay: float
    lasts: float

    def __str__(self) -> str:
        return f"after {self.delay:.1f} s, for {self.lasts:.1f} s: {' and '.join(self.faults)}"


def draw(lots: Random) -> list[Round]:
    """Draw the rounds. The faults are dealt like cards, so that few seeds show them all."""
    deck: list[str] = []
    rounds = []
    for _ in range(ROUNDS):
        deck = deck if len(deck) > 2 else lots.sample(sorted(FAULTS), len(FAULTS))
        faults = [deck.pop()]
        # A report is spooled while the database is unreachable: a full disk matters only then.
        if faults == ["spool disk full"]:
            faults.append("database stopped")
        elif lots.random() < 0.5 and FAULTS[deck[-1]].target != FAULTS[faults[0]].target:
            faults.append(deck.pop())
        rounds.append(Round(tuple(faults), lots.uniform(0, 1), lots.uniform(0.5, LONGEST)))
    return rounds
