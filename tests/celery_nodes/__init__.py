"""Nodes for pytest-celery that are processes of this machine, not containers.

The plugin's fixtures, nodes and clusters are its own. Only what it calls a container is
ours: a guarded process that is killed, stopped, restarted and read like one.
"""

from tests.celery_nodes.containers import LocalBeat, LocalRabbit, LocalRedis, LocalWorker
from tests.celery_nodes.fleet import Fleet, clean_environment, until
from tests.celery_nodes.postgres import RestartablePostgres
from tests.celery_nodes.processes import GuardedProcess, ProcessDidNotStart

__all__ = [
    "Fleet",
    "GuardedProcess",
    "LocalBeat",
    "LocalRabbit",
    "LocalRedis",
    "LocalWorker",
    "ProcessDidNotStart",
    "RestartablePostgres",
    "clean_environment",
    "until",
]
