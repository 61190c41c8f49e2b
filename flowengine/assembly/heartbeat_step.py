"""The heartbeat of a Celery worker: a step of its start and stop.

It registers the server before the worker consumes, does the jobs that belong to each heartbeat, and
ends after the pool has finished its tries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals

from flowengine.assembly.app_addresses import broker_fingerprint
from flowengine.assembly.facet_code import FacetCodeCheck
from flowengine.engine import Engine
from flowengine.library import end_left_commands
from flowengine.store.failures import DatabaseFailure
from flowengine.store.servers import ServerDefinition
from flowengine.tasks.control_queue import ControlQueue
from flowengine.tasks.drained_queues import DrainedQueues
from flowengine.tasks.lost_tries import send_end
from flowengine.worker.heartbeat import Heartbeat, server_of, worker_heartbeat
from flowengine.worker.outage_log import outage_log
from flowengine.worker.published_workflows import trace_workflows

if TYPE_CHECKING:
    from flowengine.assembly.plugin import FlowEngine


class HeartbeatStep(bootsteps.StartStopStep):  # type: ignore[misc]
    label = "flowengine"
    status: Any = None  #: the pages of the worker, if they are served

    def include_if(self, worker: Any) -> bool:
        return bool(worker.app.flowengine.takes_part(worker.pool_cls))

    def start(self, worker: Any) -> None:
        flowengine: FlowEngine = worker.app.flowengine
        identity = flowengine.identity()
        app, broker = str(flowengine.app.main or ""), broker_fingerprint(flowengine.app)
        server = server_of(identity.server_id, identity.boot_id, worker.hostname, app, broker)
        facet_code = FacetCodeCheck(server, flowengine.settings.server_timeout)
        self.heartbeat = _heartbeat(flowengine, worker, server, facet_code)
        trace_workflows()  # the pool forks after this step
        try:
            # A wrong schema is reported at once, and the first claim finds the limits of a server
            # that is registered: the consumer is started after this step.
            self.heartbeat.send(flowengine.engine)
            if facet_code.is_refused(flowengine.engine):
                self.heartbeat.stop()
                raise SystemExit(1)
        except DatabaseFailure as problem:  # the heartbeat asks for the engine again
            outage_log(flowengine.settings.database_url).note(problem)
        self.heartbeat.start()
        if flowengine.settings.status_port:
            from flowengine.assembly.worker_status import serve_status  # needs tornado

            self.status = serve_status(flowengine, worker, self.heartbeat)

    def stop(self, worker: Any) -> None:
        # Running tries are finished first: the pool is stopped after this step, and a
        # deregistered server would be asked for them.
        if self.status is not None:
            self.status.stopping()

        def shut_down(**_: Any) -> None:
            worker.app.flowengine.finish_coroutines()
            worker.app.flowengine.end_logs()
            self.heartbeat.stop()
            if self.status is not None:
                self.status.stop()

        signals.worker_shutdown.connect(shut_down, weak=False)

    def terminate(self, worker: Any) -> None:
        self.heartbeat.stop()


def _heartbeat(
    flowengine: FlowEngine, worker: Any, server: ServerDefinition, facet_code: FacetCodeCheck
) -> Heartbeat:
    queues, settings = flowengine.queues, flowengine.settings

    def consume(queue: str) -> None:
        queues.add(queue)
        worker.consumer.call_soon(_consume_now, worker.consumer, queue)

    def cancel(queue: str) -> None:
        queues.leave(queue)
        if worker.consumer is not None:
            worker.consumer.call_soon(_cancel_now, worker.consumer, queue)

    def check_facet_code(engine: Engine) -> None:
        """Do what the start could not do while the database was away."""
        if facet_code.is_refused(engine):
            _end_worker()

    drained = DrainedQueues(server, queues.consumed, consume, cancel)
    # The last job: a control queue that a drained worker has just taken is left again.
    jobs: list[Callable[[Engine], object]] = [check_facet_code, drained.check]
    if settings.control_queue not in queues.excluded:
        jobs.insert(0, ControlQueue(settings, drained.task_lists, consume).check)
    return worker_heartbeat(
        lambda: flowengine.engine,
        settings,
        server,
        drained.task_lists,
        *jobs,
        tidy=lambda: end_left_commands(settings),
        end=_end_worker,
        tell=send_end,
    )


def _consume_now(consumer: Any, queue: str) -> None:
    """Consume a queue in the thread of the consumer; one that reconnects does it anyway."""
    if consumer.task_consumer is not None:
        consumer.add_task_queue(queue)


def _cancel_now(consumer: Any, queue: str) -> None:
    if consumer.task_consumer is not None:
        consumer.cancel_task_queue(queue)


def _end_worker() -> None:
    """Have Celery end this worker as after SIGTERM, with exit code 1."""
    from celery.worker import state  # a client does not need it

    state.should_stop = 1
