"""One trace from a send through the server to the delete, with real processes and OpenTelemetry's own SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from veil.testing import VeilServer

# What `opentelemetry-instrument` does for a program, with a file for a collector.
SITECUSTOMIZE = """
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
out = open(os.environ["SPANS"], "a", buffering=1)
provider.add_span_processor(SimpleSpanProcessor(
    ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + os.linesep)
))
trace.set_tracer_provider(provider)
"""
SHOP = """
import os, signal
from opentelemetry import trace
import veil

app = veil.Consumer("orders")

@app.handler
async def handle(body: str) -> None:
    trace.get_tracer("shop").start_span("pack").end()
    os.kill(os.getpid(), signal.SIGTERM)

with trace.get_tracer("shop").start_as_current_span("order"):
    app.send("one")
app.run()
"""


@pytest.fixture
def traced(tmp_path: Path) -> dict[str, str]:
    """An environment in which every Python writes its spans to a file."""
    (tmp_path / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return {"PYTHONPATH": str(tmp_path), "SPANS": str(tmp_path / "spans")}


def spans(environ: dict[str, str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(environ["SPANS"]).read_text().splitlines()]


def named(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (only,) = [span for span in found if span["name"] == name]
    return only


def test_one_trace_leads_from_the_send_through_the_server_to_the_delete(traced: dict[str, str]) -> None:
    with VeilServer("--store", "memory", environ=traced) as server:
        server.client().create_queue(QueueName="orders")
        done = subprocess.run(
            [sys.executable, "-c", SHOP],
            env=os.environ | server.environ | traced,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    found = spans(traced)
    order = named(found, "order")
    trace_id = order["context"]["trace_id"]

    def parent_of(name: str) -> str:
        span = named(found, name)
        assert span["context"]["trace_id"] == trace_id, name
        return str(span["parent_id"])

    def id_of(name: str) -> str:
        return str(named(found, name)["context"]["span_id"])

    assert parent_of("SendMessageBatch orders") == id_of("order")
    assert parent_of("process orders") == id_of("order")
    assert parent_of("pack") == id_of("process orders")
    assert parent_of("settle orders") == id_of("process orders")
    assert parent_of("DeleteMessageBatch orders") == id_of("settle orders")
    assert named(found, "DeleteMessageBatch orders")["kind"] == "SpanKind.SERVER"


def test_spans_that_wait_to_be_sent_are_sent_when_the_server_stops(
    traced: dict[str, str], tmp_path: Path
) -> None:
    # As `opentelemetry-instrument` sends them, and with so long between that only the end can.
    batched = SITECUSTOMIZE.replace("SimpleSpanProcessor", "BatchSpanProcessor")
    batched = batched.replace("\n))", ", schedule_delay_millis=3_600_000))")
    (tmp_path / "sitecustomize.py").write_text(batched)
    with VeilServer("--store", "memory", environ=traced) as server:
        server.client().create_queue(QueueName="orders")
    assert named(spans(traced), "CreateQueue orders")


def test_the_servers_span_tells_action_queue_status_and_error(traced: dict[str, str]) -> None:
    with VeilServer("--store", "memory", environ=traced) as server:
        sqs = server.client()
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        with pytest.raises(sqs.exceptions.QueueDoesNotExist):
            sqs.send_message(QueueUrl=url + "x", MessageBody="lost")
    refused = named(spans(traced), "SendMessage ordersx")["attributes"]
    assert refused == {
        "messaging.system": "aws_sqs",
        "rpc.system": "aws-api",
        "rpc.service": "SQS",
        "rpc.method": "SendMessage",
        "http.request.method": "POST",
        "client.address": "127.0.0.1",
        "messaging.destination.name": "ordersx",
        "http.response.status_code": 400,
        "error.type": "AWS.SimpleQueueService.NonExistentQueue",
    }
    made = named(spans(traced), "CreateQueue orders")
    assert (made["attributes"]["http.response.status_code"], made["status"]["status_code"]) == (200, "UNSET")
