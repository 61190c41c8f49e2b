"""Runs in the admin: newest first, read-only, with a link to their page in Flower.

The list is the newest runs, which an index gives, and a search is for an id: a database may have
millions of runs.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from flowengine.contrib.django.models import Run
from flowengine.contrib.django.project import own_setting
from flowengine.evaluator.states import RunState
from flowengine.settings import Settings
from flowengine.store.tables import RUN_IS_LISTED

_NEWEST = 500  # runs in the list, of each state
_SHORTEST = 4  # characters of an id that are searched for among all runs
_STATES = RunState.ALL


class StateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state.capitalize()) for state in _STATES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run]:
        return queryset.filter(state=self.value()) if self.value() else queryset


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):
    list_display = ("id", "workflow", "state", "tenant", "started", "duration", "problem", "page")
    list_filter = (StateFilter,)
    search_fields = ("id",)
    search_help_text = "the id of a run, or its beginning"
    ordering = ("-created",)
    list_per_page = 50
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        runs = Run.objects.using(own_setting("DATABASE"))
        if tenant := Settings.from_environment().tenant:
            runs = runs.filter(tenant=tenant)
        is_one = request.resolver_match and "object_id" in request.resolver_match.kwargs
        if is_one or len(request.GET.get("q", "")) >= _SHORTEST:
            return runs
        return runs.filter(pk__in=_newest(runs))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Run], search_term: str
    ) -> tuple[QuerySet[Run], bool]:
        if not search_term:
            return queryset, False
        # Ids are compared as ranges: PostgreSQL uses no index for LIKE in most collations.
        return queryset.filter(pk__gte=search_term, pk__lt=search_term + "g"), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        return False

    @admin.display(description="started")
    def started(self, run: Run) -> Any:
        return run.started_at

    @admin.display(description="took")
    def duration(self, run: Run) -> str:
        return "" if run.took is None else f"{run.took.total_seconds():.1f} s"

    @admin.display(description="problem")
    def problem(self, run: Run) -> str:
        return (run.alarm or run.error or "")[:200]

    @admin.display(description="page")
    def page(self, run: Run) -> Any:
        address = own_setting("PAGES_URL").rstrip("/")
        if not address:
            return ""
        return format_html('<a href="{}/workflows/{}">steps</a>', address, run.id)


def _newest(runs: QuerySet[Run]) -> list[str]:
    """Return the ids of the newest runs of each state: there is an index by state and time.

    Its condition leaves out the runs of agents.
    """
    found: list[str] = []
    for state in _STATES:
        of_state = runs.filter(state=state).extra(where=[RUN_IS_LISTED]).order_by("-created")
        found += of_state.values_list("pk", flat=True)[:_NEWEST]
    return found
