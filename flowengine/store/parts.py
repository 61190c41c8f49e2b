"""The base of the operations on rows of one kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowengine.store.session import SqlSession


class Part:
    """Operations on rows of one kind, in a session."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session
