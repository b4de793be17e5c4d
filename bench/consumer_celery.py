"""celery on its SQS transport: `python consumer_celery.py ENDPOINT URL CONCURRENCY`, until SIGTERM; 0 sends one task instead.

Run by the peers' own interpreter, so it imports nothing of this project. Messages are acknowledged when a task begins, as
celery does by default; messages ahead of the slots are ten for each, which is more than the default and faster.
"""

from __future__ import annotations

import sys
from typing import Any

from celery import Celery  # type: ignore[import-not-found,unused-ignore]

_ENDPOINT, _URL, _CONCURRENCY = sys.argv[1], sys.argv[2], int(sys.argv[3])
_QUEUE = "noop"
_counts = {"handled": 0}

app: Any = Celery("noop", broker=_ENDPOINT.replace("http://", "sqs://veil:veil@") + "//")
app.conf.update(
    broker_transport_options={
        "is_secure": False,
        "region": "us-east-1",
        "wait_time_seconds": 1,
        "predefined_queues": {_QUEUE: {"url": _URL, "access_key_id": "veil", "secret_access_key": "veil"}},
    },
    task_default_queue=_QUEUE,
    task_ignore_result=True,
    worker_prefetch_multiplier=10,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="nothing")  # type: ignore[untyped-decorator,unused-ignore]
def nothing(body: str) -> None:
    """The handler."""
    _counts["handled"] += 1  # under the GIL, and read when all threads have ended


if __name__ == "__main__":
    if _CONCURRENCY == 0:
        nothing.delay("x" * 300)
    else:
        pool = ["--pool", "solo"] if _CONCURRENCY == 1 else ["--pool", "threads", "-c", str(_CONCURRENCY)]
        quiet = ["--loglevel", "ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        try:
            app.worker_main(["worker", *pool, *quiet])
        finally:
            print("\nhandled", _counts["handled"], flush=True)
