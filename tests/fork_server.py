"""Processes from a server that has imported the package.

They are real processes, with a directory, an environment and an end of their own. Each is spared
the second that it would take to import everything. A process of pytest has one such server.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

context: Any = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "flowengine.cli",
        "flowengine.assembly",
        "celery.worker.strategy",
        "celery.backends.cache",
        "pytest",
        "tests.acceptance.commands",
        "tests.acceptance.cancelled_trip",
        "tests.acceptance.sdk.killed_runner",
        "tests.acceptance.thirty_steps",
        "tests.acceptance.sdk.contest",
        "tests.acceptance.messaging.caller",
        "tests.acceptance.messaging.consumer",
        "tests.integration.engines",
    ]
)
