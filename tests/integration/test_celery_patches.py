"""The patches of Celery and billiard, each tested on the code that it patches."""

from __future__ import annotations

import time

import billiard
import redis.exceptions
from billiard.pool import Worker
from celery import Celery
from celery.concurrency.prefork import TaskPool
from kombu import Connection

from flowengine.assembly.celery_patches import patch_celery


def test_a_pool_child_does_not_wait_half_a_minute_for_results_that_are_never_counted() -> None:
    patch_celery()
    child = Worker.__new__(Worker)
    child.on_ready_counter = billiard.Value("i", 0)
    began = time.monotonic()
    assert not child._ensure_messages_consumed(completed=1)
    assert time.monotonic() - began < 10


def test_a_pool_that_is_stopped_has_no_processes() -> None:
    """Celery asks for their number when a connection is lost during a shutdown."""
    patch_celery()
    pool = TaskPool(2, app=Celery("stopped", set_as_current=False))
    assert pool.num_processes == 0


def test_a_redis_that_refuses_writes_counts_as_a_lost_connection() -> None:
    patch_celery()
    with Connection("redis://localhost") as connection:
        errors = connection.connection_errors
    assert issubclass(redis.exceptions.OutOfMemoryError, errors)
    assert issubclass(redis.exceptions.ReadOnlyError, errors)
    assert not issubclass(redis.exceptions.NoPermissionError, errors)
