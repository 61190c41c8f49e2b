"""Message metrics for Prometheus; needs ``flowengine[prometheus]``."""

from __future__ import annotations

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge
except ImportError:  # pragma: no cover - depends on what is installed
    raise ImportError(
        "flowengine.messaging.prometheus needs prometheus-client: "
        "pip install 'flowengine[prometheus]'"
    ) from None

from flowengine.messaging.models import AgentId, QueueDepths


class PrometheusMetrics:
    """A `MessageMetrics` with counters of prometheus-client. Create one per process."""

    def __init__(
        self, registry: CollectorRegistry = REGISTRY, *, namespace: str = "flowengine"
    ) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, namespace=namespace, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, namespace=namespace, registry=registry)

        self._taken = counter("messages_delivered", "Enqueued messages")
        self._refused = counter("messages_delivery_errors", "Refused messages and failed sends")
        self._retries = counter("messages_retries", "Scheduled retries")
        self._nacks = counter("messages_nacks", "Negative acknowledgements")
        self._dead = counter("messages_dead", "Messages that became dead letters")
        self._backoff = gauge("messages_last_backoff_seconds", "Backoff of the last retry")
        self._waiting = gauge("messages_waiting", "Messages of an agent by state", "agent", "state")
        self._oldest = gauge("messages_oldest_age_seconds", "Age of the oldest message", "agent")

    def inc_delivered_ok(self, count: int) -> None:
        self._taken.inc(count)

    def inc_delivered_error(self, count: int) -> None:
        self._refused.inc(count)

    def inc_retries_scheduled(self, count: int, last_backoff_seconds: float) -> None:
        self._retries.inc(count)
        self._backoff.set(last_backoff_seconds)

    def inc_nacks(self, count: int) -> None:
        self._nacks.inc(count)

    def inc_permanent(self, count: int) -> None:
        self._dead.inc(count)

    def show_depths(self, agent_id: AgentId, depths: QueueDepths) -> None:
        """Set the gauges of an agent; call it periodically."""
        agent = str(agent_id)
        for priority, count in depths.ready.items():
            self._waiting.labels(agent, f"ready_{priority.name.lower()}").set(count)
        self._waiting.labels(agent, "delayed").set(depths.delayed)
        self._waiting.labels(agent, "reserved").set(depths.reserved)
        self._waiting.labels(agent, "dead").set(depths.dead)
        self._oldest.labels(agent).set(depths.oldest_age or 0.0)
