"""Runs as a model of Django, to be read: flowengine writes the rows and owns the tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import models


class Run(models.Model):
    """One execution of a workflow."""

    id = models.CharField(primary_key=True, max_length=32)
    tenant = models.CharField(max_length=64)
    workflow = models.CharField(max_length=255)
    state = models.CharField(max_length=16)
    idempotency_key = models.CharField("key", max_length=255, null=True)
    parent_run_id = models.CharField("parent run", max_length=32, null=True)
    outputs = models.TextField(null=True)
    error = models.TextField(null=True)
    alarm = models.TextField(null=True)
    labels = models.TextField(null=True)
    created = models.BigIntegerField()  #: milliseconds since the epoch, as the others
    updated = models.BigIntegerField()
    finished = models.BigIntegerField(null=True)

    class Meta:
        managed = False
        db_table = "flowengine_run"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.workflow} {self.id[:8]}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("runs are read-only in Django: start one with workflow.start(…)")

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise TypeError("runs are read-only in Django")

    @property
    def started_at(self) -> datetime:
        return datetime.fromtimestamp(self.created / 1000, UTC)

    @property
    def took(self) -> timedelta | None:
        """How long an ended run took."""
        if self.finished is None:
            return None
        return timedelta(milliseconds=self.finished - self.created)
