"""The control queue is consumed by some worker, also if all of them were started with -Q.

Starts by message and evaluations after a chord wait in it. A worker with -Q leaves it to others,
because -Q is to keep other work away; if no living worker consumes it, the workers with -Q do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from flowengine.engine import Engine
from flowengine.engine.liveness import consumes, is_reachable
from flowengine.settings import Settings

log = logging.getLogger("flowengine")


class ControlQueue:
    """Has this worker consume the control queue when nobody has for `server_timeout` seconds.

    That long, because after a deploy the worker that consumes it may register as the last.
    """

    def __init__(
        self,
        settings: Settings,
        consumed: Callable[[], Collection[str]],
        consume: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._name = settings, settings.control_queue
        self._consumed, self._consume, self._clock = consumed, consume, clock
        self._next = 0.0  #: when the other workers are looked at again
        self._unserved_since: float | None = None

    def check(self, engine: Engine) -> None:
        now = self._clock()
        if now < self._next or self._name in self._consumed():
            return
        self._next = now + min(self._settings.heartbeat_interval, self._settings.server_timeout)
        if self._is_served(engine):
            self._unserved_since = None
            return
        if self._unserved_since is None:
            self._unserved_since = now
        if now - self._unserved_since < self._settings.server_timeout:
            return
        self._unserved_since = None
        log.warning(
            "no living worker has consumed the control queue %r for %.0f s, so this one does; "
            "name it in the -Q of another worker, or exclude it here with -X",
            self._name,
            self._settings.server_timeout,
            extra={"action": "control_queue_taken"},
        )
        self._consume(self._name)

    def _is_served(self, engine: Engine) -> bool:
        with engine.database.read() as session:
            alive = session.servers.alive()
        # A server without topics is an embedded process: no broker leads to it.
        near = [server for server in alive if is_reachable(server, engine.broker)]
        return any(server.topics and consumes(server, self._name) for server in near)
