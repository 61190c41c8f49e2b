"""Celery's settings for production workers, each with its reason."""

import os

# -- Where things are ---------------------------------------------------------

# The database is the one place where a run's state lives: back up this one.
flowengine_database_url = os.environ.get(
    "FLOWENGINE_DATABASE_URL", "postgresql+psycopg://localhost/flowengine"
)

# The broker carries ids and wake-ups. Losing all of it costs time, not runs, so
# Redis needs no persistence on flowengine's account.
broker_url = os.environ.get("FLOWENGINE_BROKER_URL", "redis://localhost:6379/0")

# Used to count chords; a database of its own, so that it can be emptied alone.
result_backend = os.environ.get("FLOWENGINE_RESULT_BACKEND", "redis://localhost:6379/1")

# -- Messages -----------------------------------------------------------------

# JSON only: a client that can reach the broker must not be able to make a
# worker unpickle code.
task_serializer = result_serializer = event_serializer = "json"
accept_content = result_accept_content = ["json"]

# Acknowledged when received. The database records which steps are unfinished and
# runs them again; a redelivery by the broker would only run a step twice.
task_acks_late = False

# Take one message at a time: work a process has reserved but not begun would
# wait behind a slow task while its neighbours are idle.
worker_prefetch_multiplier = 1

# Results are in SQL; storing them again would cost a round trip per message.
# flowengine's own chords say for themselves that they are counted. Set False on
# each task of your own whose result you read with `.get()`.
task_ignore_result = True

# A stored result has no use after its chord has ended.
result_expires = 3600  # seconds

# -- Staying up ---------------------------------------------------------------

# A worker that starts before its broker, or loses it for a night, waits for it.
broker_connection_retry_on_startup = True
broker_connection_max_retries = None

timezone = "UTC"
