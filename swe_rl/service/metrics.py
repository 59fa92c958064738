"""The service's counters and latencies for Prometheus: by verb and outcome, without any task's or caller's name.

One registry an app, so that several services in one process don't add up.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class ServiceMetrics:
    """What the service counts. The attributes are prometheus_client's own objects."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.calls = Counter(
            "swe_rl_calls", "Answers by route and status class", ["verb", "outcome"], registry=registry
        )
        self.call_seconds = Histogram(
            "swe_rl_call_seconds", "Seconds from the request's head to its answer", ["verb"], buckets=_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self.commands = Counter("swe_rl_commands", "Commands by how they ended", ["outcome"], registry=registry)
        self.grades = Counter("swe_rl_grades", "Verdicts by outcome", ["outcome"], registry=registry)
        self.created = Counter(
            "swe_rl_sessions_created", "Sessions that began, by source", ["source"], registry=registry
        )
        self.ended = Counter("swe_rl_sessions_ended", "Sessions that ended, by reason", ["reason"], registry=registry)
        self.create_seconds = Histogram(
            "swe_rl_sandbox_create_seconds", "Seconds to get a sandbox", ["source"], buckets=_BUCKETS, registry=registry
        )
        self.pool = Counter("swe_rl_pool", "What the warm pool gave: hit, miss, dead", ["result"], registry=registry)
        self.leaks = Counter("swe_rl_leaks_found", "Leftovers of dead services that were removed", registry=registry)
        self.journal_failures = Counter("swe_rl_journal_failures", "Writes that failed", registry=registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value that is read when it is asked for."""
        Gauge(f"swe_rl_{name}", text, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        return generate_latest(self.registry)
