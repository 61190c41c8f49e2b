"""The operations of the wire protocol: each is a function of a document, on the engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from flowengine.afl import compile_text
from flowengine.engine import Engine
from flowengine.engine.results import RunInfo, StepInfo
from flowengine.engine.waits_for import WaitsFor
from flowengine.errors import UnknownRun
from flowengine.evaluator import TaskDefinition
from flowengine.evaluator.events import RETRY_AFTER
from flowengine.evaluator.triggers import Failed, Succeeded
from flowengine.http import Request, Response
from flowengine.sdk.wire import documents
from flowengine.sdk.wire.access import Caller
from flowengine.sdk.wire.claims import Claims, Wanted
from flowengine.sdk.wire.leases import KnownTasks, Leases
from flowengine.sdk.wire.refusals import Refused
from flowengine.sdk.wire.servers import WireServer, WireServers, check_facets
from flowengine.store.shown_values import readable
from flowengine.store.steps import StepPlace
from flowengine.worker.progress import written

_PLACE = re.compile(r"([0-9]{1,16})-([0-9]{1,9})-([0-9a-f]{1,64})", re.ASCII)


class Operations:
    """The functions whose names the routes give."""

    def __init__(self, engine: Engine, is_notified: Callable[[], bool]) -> None:
        self.engine = engine
        self.known = KnownTasks()
        self.leases = Leases(engine, self.known)
        self.servers = WireServers(engine, self.known)
        self.claims = Claims(engine, self.known, is_notified)

    # --- servers ---

    def register_server(
        self, caller: Caller, request: Request, wanted: documents.Registration
    ) -> BaseModel:
        return self.servers.register(caller, wanted, request.remote)

    def beat_server(self, caller: Caller, request: Request, beat: documents.Heartbeat) -> BaseModel:
        return self.servers.heartbeat(caller, _id(request, "server_id"), beat)

    def deregister_server(self, caller: Caller, request: Request, _: None) -> BaseModel:
        return self.servers.deregister(caller, _id(request, "server_id"))

    # --- tasks ---

    async def claim_tasks(
        self,
        caller: Caller,
        request: Request,
        wanted: documents.ClaimRequest,
        server: WireServer,
    ) -> Response:
        settings = self.engine.settings
        caller.need_list(wanted.task_list)
        facets = server.row.handlers if wanted.facets is None else wanted.facets
        check_facets(facets)
        self.servers.note(server)
        tasks = await self.claims.claim(
            caller.token.id,
            server.identity,
            Wanted(wanted.task_list, tuple(sorted(set(facets))), caller.tenant()),
            min(wanted.most, settings.max_claimed_tasks),
            min(wanted.wait_seconds, settings.max_claim_seconds),
            request.gone,
            lambda: self.servers.is_alive(server),
            wanted.request_id,
        )
        claimed = documents.Claimed(tasks=[_task(task) for task in tasks])
        return Response.of_json(
            claimed.model_dump(),
            undelivered=(lambda: self.claims.give_back(tasks)) if tasks else None,
        )

    def continue_task(
        self, caller: Caller, request: Request, report: documents.Continue
    ) -> BaseModel:
        return self._report(caller, request, report.lease, Succeeded(report.result))

    def fail_task(self, caller: Caller, request: Request, report: documents.Fail) -> BaseModel:
        error: dict[str, Any] = {
            "type": report.error.type,
            "message": report.error.message or report.error.type,
        }
        if report.error.traceback:
            error["traceback"] = report.error.traceback
        if report.retry_after_seconds is not None:
            error[RETRY_AFTER] = report.retry_after_seconds
        return self._report(caller, request, report.lease, Failed(error, report.retryable))

    def _report(
        self, caller: Caller, request: Request, lease: int, outcome: Succeeded | Failed
    ) -> documents.Reported:
        task_id = _id(request, "task_id")
        task, how, is_repeated = self.leases.report(caller, (task_id, lease), outcome)
        if task is not None and (server := self.servers.cached(caller, task.runner_id)):
            server.counters.count(task, outcome)
        return documents.Reported(task_id=task_id, state=how.value, duplicate=is_repeated)  # type: ignore[arg-type]

    def release_task(self, caller: Caller, request: Request, given: documents.Release) -> BaseModel:
        task_id = _id(request, "task_id")
        released = self.leases.release(caller, (task_id, given.lease))
        return documents.Released(task_id=task_id, released=released)

    def beat_task(self, caller: Caller, request: Request, beat: documents.TaskBeat) -> BaseModel:
        progress = None if beat.progress is None else written(beat.progress)
        key = _id(request, "task_id"), beat.lease
        return documents.Wanted(wanted=self.leases.beat(caller, key, progress))

    # --- programs and runs ---

    def read_program(self, caller: Caller, request: Request, _: None) -> BaseModel:
        if caller.tenant() is not None:
            message = "a token of a tenant does not read programs by their hash"
            raise Refused("program_of_tenant", message)
        digest = _id(request, "program_hash")
        return documents.ProgramDocument(program_hash=digest, program=self._program(digest))

    def read_run_program(self, caller: Caller, request: Request, _: None) -> BaseModel:
        run_id, tenant = _id(request, "run_id"), caller.tenant()
        with self.engine.database.read() as session:
            run = session.runs.get(run_id)
        if run is None or (tenant is not None and run.tenant != tenant):
            raise UnknownRun(run_id)
        program = self._program(run.program_hash)
        return documents.ProgramDocument(program_hash=run.program_hash, program=program)

    def _program(self, digest: str) -> Any:
        try:
            with self.engine.database.autocommit_read() as session:
                return session.payloads.load_program(digest)
        except ValueError:  # no row
            raise Refused("unknown_program", f"there is no program {digest}") from None

    def start_run(
        self, caller: Caller, request: Request, wanted: documents.StartRequest
    ) -> BaseModel:
        given = [wanted.program, wanted.afl, wanted.program_hash]
        if sum(part is not None for part in given) != 1:
            message = "give the program in one way: program, afl or program_hash"
            raise Refused("bad_request", message)
        tenant = caller.tenant(wanted.tenant)
        if wanted.program_hash is not None:
            if caller.tenant() is not None:
                message = "a token of a tenant does not start programs by their hash"
                raise Refused("program_of_tenant", message)
            program = self._program(wanted.program_hash)
        elif wanted.afl is not None:
            program = compile_text(wanted.afl, allow_scripts=self.engine.settings.scripts)
        else:
            program = wanted.program
        run = self.engine.start(
            program,
            wanted.workflow,
            wanted.inputs,
            key=wanted.key,
            if_failed=wanted.if_failed,
            priority=wanted.priority,
            labels=wanted.labels,
            tenant=tenant or "",
            deadline=wanted.deadline_seconds,
            singleton=wanted.singleton,
            if_running=wanted.if_running,
        )
        return documents.Started(run_id=run.id)

    def read_run(self, caller: Caller, request: Request, _: None) -> BaseModel:
        return _run(self.engine.get(_id(request, "run_id"), tenant=caller.tenant()))

    def list_steps(self, caller: Caller, request: Request, _: None) -> BaseModel:
        after = _place(request)
        most = self.engine.settings.max_listed_steps
        limit = max(1, _number(request, "limit", min(100, most), most))
        run_id, tenant = _id(request, "run_id"), caller.tenant()
        steps, behind = self.engine.queries.steps_page(run_id, after, limit=limit, tenant=tenant)
        return documents.StepsDocument(
            steps=[_step(step) for step in steps],
            next=None if behind is None else "-".join(map(str, behind)),
        )

    def answer_run(self, caller: Caller, request: Request, answer: documents.Answer) -> BaseModel:
        run_id = self._visible(caller, request)
        taken = self.engine.send(run_id, answer.name, answer.value, actor=caller.actor)
        return documents.Answered(taken=taken)

    def cancel_run(self, caller: Caller, request: Request, how: documents.Cancel) -> BaseModel:
        self.engine.cancel(self._visible(caller, request), reason=how.reason, actor=caller.actor)
        return documents.Done()

    def _visible(self, caller: Caller, request: Request) -> str:
        run_id = _id(request, "run_id")
        self.engine.queries.get_of(caller.tenant(), run_id)
        return run_id


# --- documents of records ---


def _task(task: TaskDefinition) -> documents.Task:
    return documents.Task(
        task_id=task.uuid,
        lease=task.lease,
        facet=task.name,
        arguments=task.data or {},
        run_id=task.workflow_id,
        step_id=task.step_id,
        path=task.step_path,
        program=task.flow_id,
        task_list=task.task_list_name,
        tenant=task.tenant,
        try_number=task.try_number,
        losses=task.losses,
        timeout_ms=task.timeout_ms,
    )


def _wait(wait: WaitsFor | None) -> documents.Wait | None:
    if wait is None:
        return None
    return documents.Wait(
        kind=str(wait.kind.value), subject=wait.subject, since=wait.since, until=wait.until
    )


def _run(info: RunInfo) -> documents.RunDocument:
    names = ("workflow", "state", "outputs", "error", "alarm", "key", "priority", "tenant")
    values = {name: getattr(info, name) for name in (*names, "created", "updated", "finished")}
    readable(info.outputs)  # a program reads them: it must not take a placeholder for a result
    return documents.RunDocument(
        run_id=info.id, labels=dict(info.labels), waits_for=_wait(info.waits_for), **values
    )


def _step(step: StepInfo) -> documents.StepDocument:
    names = ("path", "facet", "state", "error", "tries", "losses", "task_state", "progress")
    values = {name: getattr(step, name) for name in (*names, "created", "updated")}
    return documents.StepDocument(
        step_id=step.id,
        kind=str(step.object_type),
        arguments=step.params,
        result=step.returns,
        waits_for=_wait(step.waits_for),
        **values,
    )


def _id(request: Request, name: str) -> str:
    text = request.arguments[name]
    if len(text) != 32 or not set(text) <= set("0123456789abcdef"):
        code = {"run_id": "unknown_run", "program_hash": "unknown_program"}.get(name)
        code = code or f"unknown_{name.removesuffix('_id')}"
        raise Refused(code, f"{name}: an id has 32 hexadecimal digits")
    return text


def _place(request: Request) -> StepPlace | None:
    """Return where the page before has ended."""
    given = request.query.get("after")
    if not given or not given[-1]:
        return None
    if (found := _PLACE.fullmatch(given[-1])) is None:
        raise Refused("bad_query", "after must be the `next` of the page before")
    created, position, step_id = found.groups()
    return StepPlace(int(created), int(position), step_id)


def _number(request: Request, name: str, default: int, most: int) -> int:
    given = request.query.get(name)
    if not given:
        return default
    text = given[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) > most:
        raise Refused("bad_query", f"{name} must be a whole number from 0 to {most}")
    return int(text)
