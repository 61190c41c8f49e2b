"""Steps that completed with a result of the cache, for readers."""

from __future__ import annotations

from collections.abc import Sequence

from flowengine.engine.program_memory import ProgramMemory
from flowengine.evaluator.records import id_within
from flowengine.program.nodes import Json
from flowengine.store import Session, codec
from flowengine.store.result_cache import CacheHit


def cache_hits(
    session: Session, run_id: str, program_hash: str, step_ids: Sequence[str]
) -> dict[str, CacheHit]:
    """Return by step where the results of these steps are from, if from the cache."""
    if not step_ids or not _uses_cache.of(session, program_hash):
        return {}
    return session.result_cache.hits(run_id, [id_within(step, "event") for step in step_ids])


def _may_have_cache(program: Json) -> bool:
    """Whether a program may have a cache: those that have none cost no query for events."""
    text = codec.dump(program)
    return '"cache"' in text or 'Cache"' in text


_uses_cache = ProgramMemory(_may_have_cache)
