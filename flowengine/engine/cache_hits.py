"""Steps that completed with a result of the cache, for readers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from flowengine.evaluator.records import id_within
from flowengine.store import Session, codec
from flowengine.store.result_cache import CacheHit

_MAX_PROGRAMS = 128
_uses: OrderedDict[str, bool] = OrderedDict()  #: by program hash: it is immutable


def cache_hits(
    session: Session, run_id: str, program_hash: str, step_ids: Sequence[str]
) -> dict[str, CacheHit]:
    """Return by step where the results of these steps are from, if from the cache."""
    if not step_ids or not _uses_cache(session, program_hash):
        return {}
    return session.result_cache.hits(run_id, [id_within(step, "event") for step in step_ids])


def _uses_cache(session: Session, program_hash: str) -> bool:
    """Whether a program may have a cache: those that have none cost no query for events."""
    found = _uses.get(program_hash)
    if found is None:
        text = codec.dump(session.payloads.load_program(program_hash))
        found = _uses[program_hash] = '"cache"' in text or 'Cache"' in text
        while len(_uses) > _MAX_PROGRAMS:
            _uses.popitem(last=False)
    return found
