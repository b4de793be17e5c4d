"""Log lines say which message they are about."""

import logging
from typing import Any

from tests.consumer.handler_kit import a_message
from veil.consumer.handlers.table import Handler, HandlerTable
from veil.consumer.message import MessageFacts


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []
        self.addFilter(MessageFacts())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


async def test_what_a_handler_logs_carries_its_message_in_threads_too() -> None:
    log, kept = logging.getLogger("shop"), Kept()
    log.addHandler(kept)
    log.setLevel(logging.INFO)
    table = HandlerTable()

    @table.handler(type="a")
    async def not_sync(body: str) -> None:
        log.info("one")

    @table.handler
    def sync(body: str) -> None:
        log.info("two", extra={"queue": "its own"})

    try:
        for number, handler in enumerate(table.handlers):
            assert isinstance(handler, Handler)
            await handler.call(a_message(id=f"m-{number}", receive_count=2, group="g"))
        log.info("outside")
    finally:
        log.removeHandler(kept)
    first, second, outside = kept.records
    assert (first.message_id, first.queue, first.receive_count, first.group) == ("m-0", "orders", 2, "g")
    assert first.facts == {"message_id": "m-0", "queue": "orders", "receive_count": 2, "group": "g"}
    assert (second.message_id, second.queue) == ("m-1", "its own")
    assert not hasattr(outside, "message_id")
