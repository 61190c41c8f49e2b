"""Liveness: which servers live and what they serve, and since when a missing heartbeat counts.

While the database is unreachable, or the machine is suspended, no heartbeat arrives and no recovery
pass runs. So a gap between recovery passes restarts the count: silence is counted from the gap's
end. A gap matters to a timeout if it is longer than a third of it: a server or a facet that sends
three heartbeats per timeout never fails for an outage, and short gaps do not postpone long ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowengine.program.commands import COMMANDS, CURE
from flowengine.settings import Settings
from flowengine.store import Session
from flowengine.store.servers import ServerDefinition

#: Returns why a server is dead, or None.
Death = Callable[[ServerDefinition], str | None]

#: How the alarm of an unserved task begins.
UNSERVED = "waits for a worker of task list"
_NAMED = 3  #: drained servers that an alarm names
ENDLESS = 40  #: the size of a gap of unknown length


def longest_unnoticed_gap(settings: Settings) -> int:
    """Return how late a recovery pass may be without a gap."""
    return round(1000 * max(1.0, 2 * settings.watchdog_interval))


@dataclass(frozen=True, slots=True)
class LivenessWindow:
    """The gaps between recovery passes, as they are known at `now`, in milliseconds. Pure."""

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


@dataclass(frozen=True, slots=True)
class Observation:
    """The input of a recovery pass. Reading it shows that the database answers."""

    window: LivenessWindow
    alive: list[ServerDefinition]  #: registered servers that have not left; some may be dead
    unregistered: list[ServerDefinition]  #: other holders of tasks


def observe(session: Session, window: LivenessWindow) -> Observation:
    alive = session.servers.alive()
    return Observation(window, alive, _unregistered(session, {s.boot_id for s in alive}))


def _unregistered(session: Session, alive: Collection[str]) -> list[ServerDefinition]:
    """Return holders of tasks that are not registered as alive.

    A server may claim before its registration, after its deregistration, or after it was declared
    dead; a poller is never registered. A claim and a task's heartbeat are signs of life too.
    """
    signs = session.recovery.last_signs(alive)
    if not signs:
        return []
    rows = {server.boot_id: server for server in session.servers.by_boot_ids(sorted(signs))}
    found = []
    for boot_id, at in signs.items():
        server = rows.get(boot_id) or ServerDefinition("", "", "", boot_id, boot_id=boot_id)
        found.append(replace(server, ping_time=max(server.ping_time, at)))
    return found


def unserved_alarms(
    alive: Sequence[ServerDefinition], pending: Collection[tuple[str, str, str]]
) -> dict[str, str]:
    """Return the alarms by run id, of pending tasks given by run id, facet and task list."""
    found = ((run_id, unserved_alarm(alive, *of_task)) for run_id, *of_task in sorted(pending))
    return {run_id: alarm for run_id, alarm in found if alarm is not None}


def unserved_alarm(alive: Sequence[ServerDefinition], facet: str, task_list: str) -> str | None:
    names = {facet, facet.rpartition(".")[2]}
    capable = [server for server in alive if names & set(server.handlers)]
    if not capable and facet in COMMANDS:
        return f"{UNSERVED} {task_list!r} that runs commands ({facet}): {CURE}"
    if not capable:
        return (
            f"{UNSERVED} {task_list!r} that has the code of event facet {facet!r}: import "
            "the module that decorates it, or start a worker that does"
        )
    if not any(consumes(server, task_list) for server in capable):
        if drained := {s.server_name for s in capable if s.is_drained and _has(s, task_list)}:
            are = "is" if len(drained) == 1 else "are"
            return (
                f"{UNSERVED} {task_list!r}: {', '.join(sorted(drained)[:_NAMED])} {are} drained; "
                f"`flowengine workers undrain {min(drained)}` ends this, or start another worker"
            )
        return (
            f"{UNSERVED} {task_list!r}: {capable[0].server_name} has the code of event facet "
            f"{facet!r} but consumes {', '.join(capable[0].topics)}; add {task_list!r} to a "
            "worker's -Q"
        )
    return None


def is_reachable(server: ServerDefinition, broker: str) -> bool:
    """Whether messages of this broker can wake the server; one that does not say so is in reach."""
    return not broker or server.broker in ("", broker)


def consumes(server: ServerDefinition, task_list: str) -> bool:
    """Whether a server takes tasks of the list."""
    return not server.is_drained and _has(server, task_list)


def _has(server: ServerDefinition, task_list: str) -> bool:
    return not server.topics or task_list in server.topics  # without topics it consumes all
