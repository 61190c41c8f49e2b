"""AFL texts with mutations, from a seed: compiled, or refused with a place.

Never another exception, never for long, and without a growth of memory.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from random import Random

import pytest

from flowengine.afl import compile_text
from flowengine.errors import InvalidProgram, InvalidText
from tests.unit.afl.random_programs import RandomProgram
from tests.unit.afl.test_any_text import PIECES, SOURCES

LONGEST = 5.0  #: seconds for one text


def mutated(text: str, random: Random) -> str:
    for _ in range(random.choice((1, 1, 2, 4, 8))):
        begin = random.randrange(len(text) + 1)
        end = min(len(text), begin + random.randrange(20))
        piece = text[begin:end]
        match random.randrange(6):
            case 0:
                new = random.choice(PIECES)
            case 1:
                new = ""
            case 2:
                new = piece * random.choice((2, 3, 200))
            case 3:
                other = random.choice(SOURCES)
                at = random.randrange(len(other))
                new = other[at : at + random.randrange(80)]
            case 4:
                new = "".join(chr(random.randrange(1, 0x2100)) for _ in range(3))
            case _:
                new = piece[::-1]
        text = text[:begin] + new + text[end:]
    return text


def compiled(text: str, about: str) -> tuple[str, list[str]]:
    """Compile a text; return how that ended, and the places of its problems."""
    try:
        compile_text(text, "x.afl")
    except InvalidText as error:
        return "no AFL text", [str(error)]
    except InvalidProgram as error:
        return "refused", [problem.where for problem in error.problems]
    except Exception:
        print(about)
        raise
    return "compiled", []


def fuzz(seed: int, count: int) -> None:
    random = Random(seed)
    counts: Counter[str] = Counter()
    slowest, before = 0.0, 0
    for number in range(count):
        is_drawn = random.random() < 0.3
        source = RandomProgram(random.randrange(10**6)).text() if is_drawn else None
        text = mutated(source or random.choice(SOURCES), random)
        about = f"seed {seed}, text {number}: {text[:2_000]!r}"
        began = time.process_time()
        outcome, places = compiled(text, about)
        counts[outcome] += 1
        assert all(place.startswith("x.afl") for place in places), about
        seconds = time.process_time() - began
        slowest = max(slowest, seconds)
        assert seconds < LONGEST, about
        if number == count // 3:  # caches are filled
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"\nseed {seed}: {count} AFL texts, {dict(counts)}; slowest {slowest:.2f} s")
    print(f"memory: +{grown:.0f} MB")
    assert min(counts["compiled"], counts["refused"], counts["no AFL text"]) > count / 100, counts
    assert grown < 100


def test_mutated_texts_are_compiled_or_refused() -> None:
    fuzz(15, 150)


@pytest.mark.chaos
def test_many_mutated_texts_are_compiled_or_refused(chaos_seed: int) -> None:
    fuzz(chaos_seed, 15_000)
