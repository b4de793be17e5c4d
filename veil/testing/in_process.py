"""A queue service inside the test: the real client, the real wire and the real rules on the store in memory, no sockets, and time
only when the test says so."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from veil.client.answers import results_in
from veil.client.api import ApiError, Failure
from veil.client.client import SqsClient
from veil.client.connection import HttpAnswer
from veil.client.credentials import DUMMY
from veil.core.attempt import HEADER, ReportedOutcome, read_header
from veil.core.clock import ManualClock, Timer
from veil.core.message import StoredMessage
from veil.core.queue import Queue, QueueKey, RedrivePolicy
from veil.service.queues import change_settings, create_queue, find_queue
from veil.service.receive import receipt_text
from veil.service.service import Service
from veil.stores.memory import MemoryStore
from veil.wire.exchange import Request
from veil.wire.front_end import SqsFrontEnd

REGION: Final = "us-east-1"
ACCOUNT: Final = "000000000000"
_ENDPOINT: Final = "http://in-process"
# The calls, as the consumer names them.
_CALLS: Final = {
    "GetQueueUrl": "queue_url",
    "GetQueueAttributes": "attributes",
    "ReceiveMessage": "receive",
    "DeleteMessageBatch": "delete",
    "ChangeMessageVisibilityBatch": "extend",
    "SendMessage": "send",
}


class ManualTime(ManualClock):
    """A manual clock that can say when something is due next."""

    def monotonic_s(self) -> float:
        """Seconds, as the consumer counts them."""
        return self.now_ms() / 1000

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call so much later."""
        # Rounded up: woken a fraction of a millisecond early, a keeper would find nothing due and ask again for ever.
        return self.call_at(self.now_ms() + math.ceil(delay_s * 1000), call)

    def next_due_ms(self) -> int | None:
        """The instant of the next timer; None when none is set."""
        return self._timers[0][0] if self._timers else None


class InProcessService:
    """The queues, and what happened to the calls made on them. `api()` gives a client."""

    def __init__(self, clock: ManualTime) -> None:
        self.clock = clock
        self.service = Service(MemoryStore(clock), clock)
        self._front_end = SqsFrontEnd(self.service, verifier=None, default_account=ACCOUNT)
        self.calls: Counter[str] = Counter()
        self.deleted: list[StoredMessage] = []
        # Of attempts that ended other than by a plain delete.
        self.reported: list[ReportedOutcome | None] = []
        self._failures: dict[str, deque[ApiError]] = {}

    def api(self) -> SqsClient:
        """One more client of the service."""
        return _InProcessClient(self)

    def fail(self, call: str, failure: Failure = Failure.UNREACHABLE, *, times: int = 1) -> None:
        """Let the next calls of that name (`receive`, `delete`, `extend`, `send`, …) fail, without any effect."""
        error = ApiError(failure, f"Injected{failure.value.title()}", "the test wants this call to fail")
        self._failures.setdefault(call, deque()).extend([error] * times)

    async def create(
        self,
        name: str,
        *,
        visibility_s: int = 30,
        dead_letters: str | None = None,
        receives_max: int = 3,
        **settings: Any,
    ) -> Queue:
        """A queue of that name (FIFO if it ends so), with everything else as QueueSettings has it."""
        given = {"visibility_s": visibility_s, **settings}
        if name.endswith(".fifo"):
            given |= {"fifo": True}
        if dead_letters is not None:
            given["redrive"] = RedrivePolicy(_key(dead_letters), receives_max)
        return await create_queue(self.service, _key(name), given, {})

    async def change(self, name: str, **settings: Any) -> None:
        """Edit a queue, as an operator would."""
        await change_settings(self.service, await self.queue(name), settings)

    async def queue(self, url_or_name: str) -> Queue:
        """The queue as it stands."""
        return await find_queue(self.service, _key(url_or_name))

    async def messages(self, name: str) -> list[StoredMessage]:
        """Everything in the queue, in whatever state, by rising age; nothing is received."""
        await self.service.store.settle()
        return await self.service.store.peek(await self.queue(name), limit=10_000)

    # ---- as the connection pool of its clients

    async def exchange(self, request: bytes, **_: Any) -> HttpAnswer:
        """The answer to a request; what a test looks at is noted, and fails what it wants to fail."""
        head, _blank, body = request.partition(b"\r\n\r\n")
        lines = (line.partition(": ") for line in head.decode("latin-1").split("\r\n")[1:])
        headers = {name.lower(): value for name, _, value in lines}
        call = _CALLS[headers["x-amz-target"].rpartition(".")[2]]
        self.calls[call] += 1
        if failures := self._failures.get(call):
            raise failures.popleft()
        given = json.loads(body)
        held = await self._held(given["QueueUrl"]) if call == "delete" else {}
        response = await self._front_end.handle(Request("POST", "/", "", headers, body))
        answered = [(name.lower().encode(), value.encode()) for name, value in response.headers]
        answer = HttpAnswer(response.status, answered, response.body)
        entries = given.get("Entries", ())
        self.reported += read_header(headers.get(HEADER, ""), [entry["Id"] for entry in entries]) or ()
        if held and answer.status == 200:
            results = results_in(answer, len(entries))
            done = (
                entry["ReceiptHandle"] for entry, error in zip(entries, results, strict=True) if not error
            )
            self.deleted += [held[receipt] for receipt in done if receipt in held]
        return answer

    async def abandon(self) -> None:
        """Nothing is open."""

    close = abandon

    async def _held(self, url: str) -> dict[str, StoredMessage]:
        """The queue's messages by their receipts."""
        queue = await self.queue(url)
        messages = await self.service.store.peek(queue, limit=10_000)
        return {receipt_text(self.service, queue, message): message for message in messages}


class _InProcessClient(SqsClient):
    def __init__(self, owner: InProcessService) -> None:
        super().__init__(
            endpoint=_ENDPOINT,
            region=REGION,
            credentials=DUMMY,
            start_tries=1,  # the pauses between them would take real time
            monotonic=owner.clock.monotonic_s,
            wall_ms=owner.clock.wall_ms,
            environ={},
        )
        self._pool = owner  # type: ignore[assignment]

    async def queue_url(self, name: str) -> str:
        """The URL here of a queue that may have another account and region where the consumer is used."""
        return await super().queue_url(_key(name).name)


def _key(queue: str) -> QueueKey:
    return QueueKey(REGION, ACCOUNT, queue.rsplit("/", 1)[-1].rsplit(":", 1)[-1])
