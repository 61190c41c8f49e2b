"""Nodes for pytest-celery that are processes of this machine, not containers.

Fixtures, nodes and clusters are the plugin's own. Only its containers are replaced, by guarded
processes that are killed, stopped, restarted and read like containers.
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
