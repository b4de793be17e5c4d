"""The SQS client for code that blocks, such as the command: any operation by its name, and queues by theirs."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

from veil.client.api import ApiError, Failure, RetryBackoff
from veil.client.client import READ_TIMEOUT_S, SqsClient, with_retries
from veil.client.connection import NoAnswer
from veil.client.credentials import DUMMY, Credentials, read_profile, static_credentials
from veil.client.endpoint import LOCAL, configured_endpoint, find_endpoint

T = TypeVar("T")
Answer = dict[str, Any]

_TRIES: Final = 3
_BACKOFF: Final = RetryBackoff(first_s=0.1, max_s=0.4)
_PAGE: Final = 1000
# Calls that change nothing more when they are made twice. A repeated send would be a second message; a
# repeated purge or removal of a queue would report the first one's success as an error.
_REPEATABLE: Final = frozenset({
    "ChangeMessageVisibility", "CreateQueue", "DeleteMessage", "DescribeMessage", "DescribeQueues", "GetQueueAttributes",
    "GetQueueUrl", "ListDeadLetterSourceQueues", "ListMessageMoveTasks", "ListQueueTags", "ListQueues", "PauseQueue",
    "PeekMessages", "ResumeQueue", "SetQueueAttributes", "TagQueue", "UntagQueue",
})  # fmt: skip
_VEILS_OWN: Final = frozenset(
    {"DescribeMessage", "DescribeQueues", "PauseQueue", "PeekMessages", "ResumeQueue", "StartRedrive"}
)


class LoopThread:
    """A running event loop; it ends with the process, or when closed."""

    def __init__(self, name: str) -> None:
        import uvloop

        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin the work on the loop; the caller waits for the result when it needs it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work on the loop and wait for its result."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            # Interrupted while waiting: the work must not go on behind the caller's back.
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


class LoopClient:
    """The SQS client on the event loop of a thread of its own, for code that blocks."""

    def __init__(self, client: SqsClient, name: str) -> None:
        self._client, self._loop = client, LoopThread(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._loop.run(self._client.close())
        self._loop.close()

    @property
    def region(self) -> str:
        return self._client.region

    @property
    def endpoint(self) -> str:
        return self._client.endpoint


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """One service to talk to: endpoint, region and key."""

    endpoint: str
    region: str
    credentials: Credentials = DUMMY
    is_default: bool = False  # no endpoint was named


def find_target(
    endpoint: str | None = None, region: str | None = None, environ: Mapping[str, str] = os.environ
) -> ServiceTarget:
    """The service meant by the arguments, then the AWS variables, then the profile; else Veil on this machine."""
    profile = read_profile(environ=environ)
    named = endpoint or configured_endpoint(profile, environ)
    place, found_region = find_endpoint(named or LOCAL, region, profile, environ)
    # Static keys only: what a Veil without keys is asked must not wait for a single sign-on.
    key = static_credentials(profile, environ) or DUMMY
    return ServiceTarget(f"{place.url}{place.path}".rstrip("/"), found_region, key, named is None)


class CallFailed(ApiError):
    """A call that failed, with all that it was about; `no_answer` where it is not the service that refused it."""

    def __init__(self, error: ApiError, target: ServiceTarget, action: str, queue: str | None) -> None:
        super().__init__(error.failure, error.code, error.message, away=error.away)
        self.target, self.action, self.queue = target, action, queue
        self.no_answer = error.__cause__ if isinstance(error.__cause__, NoAnswer) else None


class BlockingClient(LoopClient):
    """Calls the operations of SQS, and Veil's own; raises CallFailed."""

    def __init__(
        self, target: ServiceTarget, *, timeout_s: float = 3 * READ_TIMEOUT_S, tries: int = _TRIES
    ) -> None:
        self.target = target
        self._timeout_s, self._tries = timeout_s, tries
        self._urls: dict[str, str] = {}
        client = SqsClient(
            endpoint=target.endpoint,
            region=target.region,
            credentials=target.credentials,
            connect_timeout_s=timeout_s,
            read_timeout_s=timeout_s,
            # Without the process: one person's receive and delete are two commands.
            role="command",
        )
        super().__init__(client, "veil-client")

    def call(
        self, action: str, given: Answer | None = None, *, queue: str | None = None, wait_s: int = 0
    ) -> Answer:
        """The answer to one operation; `wait_s` is how long the service may hold it back."""
        target = f"Veil.{action}" if action in _VEILS_OWN else action
        repeatable = action in _REPEATABLE
        invocation = str(uuid.uuid4())  # one id over all tries, as SDKs do

        async def once() -> Answer:
            return await self._client.ask(
                target,
                given or {},
                Answer,
                repeatable=repeatable,
                timeout_s=self._timeout_s + wait_s,
                invocation=invocation,
            )

        tries = self._tries if repeatable else 1
        try:
            return self._loop.run(with_retries(once, _BACKOFF, tries=tries, passes=_may_pass))
        except ApiError as error:
            raise CallFailed(error, self.target, action, queue) from None

    def on_queue(self, action: str, queue: str, given: Answer | None = None, *, wait_s: int = 0) -> Answer:
        """One operation on the queue of that name."""
        asked = {"QueueUrl": self.queue_url(queue), **(given or {})}
        return self.call(action, asked, queue=queue, wait_s=wait_s)

    def queue_url(self, name: str) -> str:
        """The URL of a queue by its name; a URL is taken as it is."""
        if "://" in name:
            return name
        if name not in self._urls:
            answer = self.call("GetQueueUrl", {"QueueName": name}, queue=name)
            self._urls[name] = str(answer["QueueUrl"])
        return self._urls[name]

    def account(self, queue: str) -> str:
        """Whose queue it is, by its URL."""
        return self.queue_url(queue).rstrip("/").rpartition("/")[0].rpartition("/")[2]

    def queue_names(self, prefix: str = "") -> Iterator[str]:
        """The names of all queues."""
        for url in self.paged("ListQueues", "QueueUrls", _beginning_with(prefix)):
            name = str(url).rpartition("/")[2]
            self._urls[name] = str(url)
            yield name

    def descriptions(self, prefix: str = "") -> Iterator[Answer]:
        """How every queue stands; only a Veil server says it."""
        return self.paged("DescribeQueues", "Queues", _beginning_with(prefix))

    def peeked(self, queue: str, count: int, **query: Any) -> Iterator[Answer]:
        """The queue's messages, oldest first, without receiving them: up to so many with each call."""
        return self.paged("PeekMessages", "Messages", {"MaxResults": min(count, _PAGE), **query}, queue)

    def paged(self, action: str, items: str, query: Answer, queue: str | None = None) -> Iterator[Any]:
        """All items of an operation that answers page by page, on a queue if one is named."""
        while True:
            answer = self.call(action, query) if queue is None else self.on_queue(action, queue, query)
            yield from answer.get(items) or ()
            if not answer.get("NextToken"):
                return
            query = {**query, "NextToken": answer["NextToken"]}

    def attributes(self, queue: str, *names: str) -> dict[str, str]:
        """The queue's attributes, all unless some are named."""
        answer = self.on_queue("GetQueueAttributes", queue, {"AttributeNames": list(names) or ["All"]})
        return dict(answer.get("Attributes", {}))

    def arn(self, queue: str) -> str:
        """The ARN of a queue by its name."""
        return self.attributes(queue, "QueueArn")["QueueArn"]

    def each_queue(self, prefix: str = "") -> Iterator[tuple[str, dict[str, str]]]:
        """The name and attributes of every queue; those removed since they were listed are left out."""
        for name in list(self.queue_names(prefix)):
            try:
                yield name, self.attributes(name)
            except CallFailed as error:
                if not error.is_missing_queue:
                    raise


def _beginning_with(prefix: str) -> Answer:
    return {"MaxResults": _PAGE, **({"QueueNamePrefix": prefix} if prefix else {})}


def _may_pass(error: ApiError) -> bool:
    """Whether the next try may be answered. A server that is down will hardly be started within a second, and a certificate stays
    as it is."""
    if isinstance(error.__cause__, NoAnswer):
        return not (error.__cause__.refused or error.__cause__.untrusted)
    return error.away or error.failure is Failure.THROTTLED
