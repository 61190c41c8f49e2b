"""How long this process has lately worked for each tenant, so that it serves others first.

A claim takes the tasks of one tenant. To take turns by the number of claims would not be fair: the
tasks of one tenant may take a thousand times as long as those of another. So a process counts
seconds, and serves the tenant with the most of them last. The seconds lose half their weight every
ten seconds: a tenant is not punished for the work of an hour ago.

Each process counts for itself. Processes that serve the same list see the same tenants, so their
counts agree well enough, and nothing is shared between them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_HALF_LIFE = 10.0  # seconds
_FORGOTTEN = 0.001  # seconds of work below which a tenant is removed


class TenantUsage:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._counted = clock, clock()
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}

    def count(self, tenant: str, seconds: float) -> None:
        """Count time that this process has worked for a tenant."""
        with self._lock:
            now = self._clock()
            weight = 0.5 ** ((now - self._counted) / _HALF_LIFE)
            self._counted = now
            self._seconds = {
                name: left
                for name, spent in self._seconds.items()
                if (left := spent * weight) > _FORGOTTEN
            }
            self._seconds[tenant] = self._seconds.get(tenant, 0.0) + seconds

    @property
    def heaviest(self) -> str:
        """The tenant that this process has worked for longest; empty if it has for none."""
        with self._lock:
            return max(self._seconds, key=self._seconds.__getitem__, default="")
