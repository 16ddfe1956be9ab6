"""``/health`` and Prometheus' ``/metrics`` of a program, on loopback: for the machine's own monitoring, off unless set.

A page is made when somebody looks: ``Look`` returns what there is to say at that moment.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from coterie.errors import UsageError

HOST = "127.0.0.1"
SECONDS = 5.0
"""Seconds that somebody who looks has for the request."""

PREFIX = "coterie_"


@dataclass(frozen=True)
class Measure:
    """A number under a name: a gauge, or a counter, which only grows; ``labels`` tell apart those of one name."""

    name: str
    text: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    counts: bool = False


@dataclass(frozen=True)
class Health:
    """How a program is: what is wrong (none: it is well), what will be, facts for people, and measures for machines."""

    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    measures: Sequence[Measure] = ()

    def page(self) -> bytes:
        """Return ``/health`` as JSON."""
        said = {"healthy": not self.problems, "problems": [*self.problems], "warnings": [*self.warnings]}
        return (json.dumps({**said, **self.facts}, indent=2) + "\n").encode()


Look = Callable[[], Health]


@contextmanager
def monitored(port: int | None, look: Look) -> Iterator[None]:
    """Serve ``/health`` and ``/metrics`` on a port of loopback during the block; nothing if there is no port."""
    if port is None:
        yield
        return
    metrics_page([])  # refuse now if the package is missing
    try:
        server = ThreadingHTTPServer((HOST, port), _handler(look))
    except OSError as error:
        raise UsageError(f"monitor is {port}, where nothing can listen ({error.strerror}); set another port") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def metrics_page(measures: Iterable[Measure]) -> bytes:
    """Return measures in the text format of Prometheus.

    >>> print(metrics_page([Measure("round", "Rounds done", 3)]).decode(), end="")
    # HELP coterie_round Rounds done
    # TYPE coterie_round gauge
    coterie_round 3.0
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError:
        raise UsageError("monitor is set, but prometheus-client is missing; pip install 'coterie[metrics]'") from None

    class Given(Collector):
        def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
            families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
            for each in measures:
                kind = CounterMetricFamily if each.counts else GaugeMetricFamily
                if each.name not in families:
                    families[each.name] = kind(PREFIX + each.name, each.text, labels=list(each.labels))
                families[each.name].add_metric(list(each.labels.values()), each.value)
            yield from families.values()

    registry = CollectorRegistry()
    registry.register(Given())
    return generate_latest(registry)


def _handler(look: Look) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests with what ``look`` returns."""

    class Handler(BaseHTTPRequestHandler):
        timeout = SECONDS

        def do_GET(self) -> None:
            """Answer one request; nothing but the two pages exists."""
            if self.path not in ("/health", "/metrics"):
                self.send_error(404, "only /health and /metrics are here")
                return
            found = look()
            if self.path == "/health":
                self._send(503 if found.problems else 200, "application/json", found.page())
            else:
                self._send(200, "text/plain; version=0.0.4; charset=utf-8", metrics_page(found.measures))

        def _send(self, code: int, kind: str, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: a monitor looks every few seconds."""

    return Handler
