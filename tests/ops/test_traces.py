"""Traces of batches, as a real OTLP/HTTP receiver gets them from a real driver."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pipelines.settings import Settings
from pipelines.traces import NO_TRACES, traces_of
from tests.support.feed import SQL, Feed, create_topic
from tests.support.pipeline import PipelineUnderTest


class Receiver:
    """Takes spans on loopback."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in request.resource_spans:
                    names = {a.key: a.value.string_value for a in resource.resource.attributes}
                    receiver.services.add(names["service.name"])
                    receiver.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def traces(self) -> list[dict[str, list[Span]]]:
        """The spans of each trace by name."""
        found: dict[bytes, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
        for span in self.spans:
            found[span.trace_id][span.name].append(span)
        return list(found.values())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def said(span: Span, name: str) -> str | int:
    (value,) = [a.value for a in span.attributes if a.key == f"rollforward.{name}"]
    return value.string_value or value.int_value


@pytest.mark.timeout(600)
def test_a_batch_is_one_trace_of_its_steps(settings: Settings, kafka: str, unique: str, receiver: Receiver) -> None:
    create_topic(kafka, unique)
    feed = Feed(kafka, unique, seed=7)
    tracing = settings.model_copy(update={"otlp_endpoint": receiver.url, "tasks": 2})
    pipeline = PipelineUnderTest(tracing, unique, SQL.format(topic=unique))
    for _ in range(2):
        feed.send(2_000)
        assert 0 == pipeline.run_until_end(300), pipeline.tail()

    assert {f"rollforward-{unique}"} == receiver.services
    known = {row.batch for row in pipeline.registry.batches(pipeline=unique)}
    assert known == {said(span, "batch") for span in receiver.spans if span.name == "batch"}
    for trace in receiver.traces():
        steps = Counter({name: len(spans) for name, spans in trace.items()})
        assert {"batch": 1, "plan": 1, "stage": 1, "finish": 1, "commit": 2, "apply": 2} == steps
        (root,) = trace["batch"]
        assert (b"", unique, "totals") == (root.parent_span_id, said(root, "pipeline"), said(root, "query"))
        commits = {said(span, "task"): span for span in trace["commit"]}
        assert {"totals-0", "totals-1"} == set(commits)
        for name, spans in trace.items():
            for span in spans:
                assert said(root, "batch") == said(span, "batch")
                above = commits[str(said(span, "task"))] if name == "apply" else root
                if span is not root:
                    assert above.span_id == span.parent_span_id
                    assert span.end_time_unix_nano <= above.end_time_unix_nano

    # Where nobody takes them they are dropped.
    received = len(receiver.spans)
    receiver.close()
    feed.send(2_000)
    assert 0 == pipeline.run_until_end(300), pipeline.tail()
    assert (feed.sent, received) == (
        sum(row.records for row in pipeline.registry.batches(pipeline=unique)),
        len(receiver.spans),
    )
    pipeline.close()


def test_without_an_address_there_are_no_traces_and_nothing_is_imported() -> None:
    assert traces_of(Settings(bootstrap_servers="unused:1"), "p") is NO_TRACES
    look = "import sys, pipelines.pipeline_driver; print([name for name in sys.modules if 'opentelemetry.sdk' in name])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()
