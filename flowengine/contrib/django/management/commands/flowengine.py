"""`manage.py flowengine …`: the commands of `flowengine`, with the settings of the project."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Commands of flowengine: list, show, db upgrade and others (flowengine --help)."

    def run_from_argv(self, argv: list[str]) -> None:
        from flowengine.cli import main

        main(args=argv[2:], prog_name="manage.py flowengine")

    def handle(self, *args: Any, **options: Any) -> None:
        """Called by `call_command`."""
        from flowengine.cli import main

        main(args=list(args), prog_name="manage.py flowengine", standalone_mode=False)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs="*")
