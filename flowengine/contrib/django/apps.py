"""The Django app: autodiscovery of `workflows.py`, transactions, and the tables after `migrate`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from flowengine.contrib.django.project import database_url, own_setting


class FlowengineConfig(AppConfig):
    name = "flowengine.contrib.django"
    label = "flowengine"
    verbose_name = "Workflows"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from flowengine.assembly.launcher import set_transaction_source
        from flowengine.contrib.django import launcher
        from flowengine.contrib.django.transactions import current_transaction

        set_transaction_source(current_transaction)
        launcher.install()
        post_migrate.connect(_upgrade, sender=self)
        autodiscover_modules("workflows")


def _upgrade(using: str, **_: Any) -> None:
    """Create or upgrade the tables of flowengine, if the migrated database has its runs."""
    from flowengine.settings import Settings
    from flowengine.store import Database, ensure_schema

    settings, url = Settings.from_environment(), database_url(using)
    if using != own_setting("DATABASE") or not url or url != settings.database_url:
        return
    database = Database(url, schema=settings.schema)
    try:
        ensure_schema(database, upgrade=True)
    finally:
        database.close()
