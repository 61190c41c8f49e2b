"""The liveness window: since when a missing heartbeat counts. Pure, in milliseconds.

While the database is away, or the machine is suspended, no heartbeat arrives and no recovery pass
runs. So a gap between recovery passes restarts the count: silence is counted from the gap's end.
A gap matters to a timeout if it is longer than a third of it: a server or a facet that sends three
heartbeats per timeout never fails for an outage, and short gaps do not postpone long timeouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flowengine.settings import Settings

ENDLESS = 40  #: the size of a gap of unknown length


def longest_unnoticed_gap(settings: Settings) -> int:
    """Return how late a recovery pass may be without a gap."""
    return round(1000 * max(1.0, 2 * settings.watchdog_interval))


@dataclass(frozen=True, slots=True)
class LivenessWindow:
    """The gaps between recovery passes, as they are known at `now`."""

    now: int
    unnoticed: int = 0  #: the longest gap that is not recorded
    until: int = 0  #: when the next pass is due
    #: The end of the last gap of each size: a gap of size n is shorter than 2**n seconds.
    gaps: Mapping[int, int] = field(default_factory=dict)

    def observe(self, now: int, interval: int) -> LivenessWindow:
        """Return the window after a pass at `now`, with the next one due after `interval`."""
        gaps = dict(self.gaps)
        if is_out_of_reach(self.until, now, interval):
            gaps[ENDLESS] = now  # the clock was set back
        elif now - self.until > self.unnoticed:
            gaps[((now - self.until) // 1000).bit_length()] = now
        return replace(self, now=now, until=now + interval, gaps=gaps)

    def silence(self, last_sign: int, timeout: int) -> int:
        """Return for how long a heartbeat could have arrived and did not."""
        ends = [end for size, end in self.gaps.items() if 3000 << size > timeout]
        return self.now - max(last_sign, *(end for end in (0, *ends) if end <= self.now))

    def is_silent(self, last_sign: int, timeout: int) -> bool:
        # An unnoticed gap may be longer than a third of a short timeout.
        return self.silence(last_sign, timeout) > timeout + max(0, self.unnoticed - timeout // 3)


def is_out_of_reach(until: int, now: int, duration: int) -> bool:
    """Whether a lease ends later than its duration explains: the clock was set back.

    Clocks of two processes may differ by as much as one duration.
    """
    return until > now + 2 * duration
