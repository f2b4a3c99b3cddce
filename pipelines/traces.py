"""Traces of batches for OpenTelemetry's collectors: one for each batch. Off unless `otlp_endpoint` is set.

    batch              from its plan to its end, with the attributes pipeline, query, batch and epoch
      plan
      stage            the Spark job; one for every attempt
      commit           one for every task: from the question to the answer of its store server
        apply          the last part of it, as long as the server says
      finish

Spans are sent by a thread of their own, over HTTP; where nobody takes them they are dropped, and the stream goes on.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from pipelines.settings import Settings
from statestore.errors import InvalidConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Attribute = str | int
_NAMESPACE = "rollforward"
# Of one request, its repetitions included: the driver's end waits for the last one.
_SEND_S = 5.0


class Traces:
    """No traces: nothing is imported, and a step costs a call."""

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[object]:
        """A step of now, within the one that this thread is in. An exception that leaves it is told as its error."""
        return nullcontext()

    def past(self, name: str, seconds: float, **attributes: Attribute) -> None:
        """A step that has just ended and took so long."""

    def close(self) -> None:
        """Send what is left."""


class OtlpTraces(Traces):
    """Traces to a collector."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(_NAMESPACE)

    def span(self, name: str, **attributes: Attribute) -> AbstractContextManager[object]:
        return self._tracer.start_as_current_span(name, attributes=_named(attributes))

    def past(self, name: str, seconds: float, **attributes: Attribute) -> None:
        now = time.time_ns()
        span = self._tracer.start_span(name, attributes=_named(attributes), start_time=now - int(seconds * 1e9))
        span.end(now)

    def close(self) -> None:
        self._provider.shutdown()


NO_TRACES = Traces()


def traces_of(settings: Settings, pipeline: str) -> Traces:
    """What the settings say. Raises `InvalidConfig` where traces are wanted and the packages are missing."""
    if not settings.otlp_endpoint:
        return NO_TRACES
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidConfig(
            "otlp_endpoint is set, and OpenTelemetry is not installed",
            error=error,
            hint="pip install 'rollforward[traces]'",
        ) from error
    resource = Resource.create({"service.name": f"{_NAMESPACE}-{pipeline}", "service.instance.id": str(os.getpid())})
    # The program's own end is in order or a kill: a hook at exit would send twice or too late.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(settings.otlp_endpoint, timeout=_SEND_S)))
    return OtlpTraces(provider)


def _named(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    return {f"{_NAMESPACE}.{name}": value for name, value in attributes.items()}
