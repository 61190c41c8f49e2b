"""The result cache of event facets: a step completes with an earlier result of the same key.

An entry is written by the commit that completes a step, and never changed: the newest of a key
counts. Tenant, facet and the types of its results are part of the key. Steps of a retried run and
of a fork do not read the cache: somebody has asked for them to run again.
"""

from __future__ import annotations

import json

from flowengine.evaluator.failures import StepFailed
from flowengine.evaluator.records import CachedResult, ReusedResult, Step, derived_id, id_within
from flowengine.evaluator.working_set import WorkingSet
from flowengine.program.event_options import Cache
from flowengine.program.limit_keys import typed_parts
from flowengine.program.plan import FacetPlan


def reuse(work: WorkingSet, step: Step) -> bool:
    """Complete the event of a step with a cached result, if there is a fresh one."""
    cache = work.statement(step).options.cache
    if cache is None or step.generation:
        return False
    try:
        key = _key(work, step, cache)
    except (KeyError, TypeError) as problem:
        message = f"a cache needs {problem.args[0]!r} in its key, which is no single value"
        raise StepFailed("InvalidCacheKey", message, step.path) from None
    found = work.cached(key)
    if found is None or not is_fresh(found, cache, work.now):
        return False
    step.returns = dict(found.returns)
    work.changes.reused_results.append(
        ReusedResult(id_within(step.id, "event"), step.id, step.key, step.path, found)
    )
    return True


def keep(work: WorkingSet, step: Step, returns: dict[str, object]) -> None:
    """Add the result of a completed event to the cache, if its facet has one."""
    cache = work.statement(step).options.cache
    if cache is None:
        return
    try:
        key = _key(work, step, cache)
    except (KeyError, TypeError):
        return  # its run has moved to a program with another key
    work.changes.cached_results[key] = CachedResult(
        id=id_within(step.id, "cache"),
        key=key,
        tenant=work.run.tenant,
        facet=step.facet_name,
        run_id=step.run_id,
        path=step.path,
        returns=returns,
        created=work.now,
        expires=work.now + _milliseconds(cache),
    )


def is_fresh(found: CachedResult, cache: Cache, now: int) -> bool:
    """Whether a result may be used: neither older than this program says, nor than its own did."""
    return now < min(found.expires, found.created + _milliseconds(cache))


def _milliseconds(cache: Cache) -> int:
    age = cache.max_age
    seconds = age if isinstance(age, int | float) else age.total_seconds()
    return max(1, round(seconds * 1000))


def _key(work: WorkingSet, step: Step, cache: Cache) -> str:
    """Return the digest by which results are found; raises KeyError or TypeError."""
    facet = work.facet(step)
    assert facet is not None
    tenant = work.run.tenant
    parts = typed_parts(cache.key, lambda name: work.read(step.params[name]), work.run)
    return derived_id("cache", json.dumps([tenant, facet.name, _types(facet), parts]))


def _types(facet: FacetPlan) -> list[list[str]]:
    return [
        [field.name, str(field.type), json.dumps(field.schema, sort_keys=True, default=str)]
        for field in facet.returns
    ]
