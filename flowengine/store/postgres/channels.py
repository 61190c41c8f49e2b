"""The channels of NOTIFY."""

from __future__ import annotations

CHANNEL = "flowengine_run"  #: of NOTIFY: the runs that ended
FEED = "_feed"  #: behind the channel of ended runs: commits that the feed is to have
TASK_CHANNEL = "flowengine_task"  #: of NOTIFY: task lists that have due tasks, for pollers


def task_channel(channel: str) -> str:
    """Return the channel of due tasks, given that of ended runs: both end with the schema."""
    return TASK_CHANNEL + channel.removeprefix(CHANNEL)
