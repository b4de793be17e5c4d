"""SQS for the consumer: AWS JSON 1.0 over HTTP connections of our own, signed, one try per call.

Callers have deadlines and policies of their own, so nothing is tried again here, with three exceptions: a request that met a
connection which the service had closed at rest, credentials that were refused for their age, and the two questions that a
consumer asks at its start. Requests go to the endpoint directly: proxies (HTTPS_PROXY) are not used, nor is dual-stack
addressing; an explicit endpoint can name whatever is to be reached.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from random import Random
from typing import Any, Final, TypeVar

import msgspec

from veil.client import answers
from veil.client.api import (
    BATCH_MAX,
    RANDOM,
    ApiError,
    Attribute,
    Failure,
    RawMessage,
    RetryBackoff,
    wants_other_credentials,
)
from veil.client.connection import REST_S_MAX, HttpAnswer, HttpPool, NoAnswer, OnOrphaned, RequestHead
from veil.client.credentials import Credentials, CredentialsSource, read_profile
from veil.client.endpoint import ca_bundle, client_context, find_endpoint, region_in
from veil.core.attempt import GIVEN_BACK, ReportedOutcome, write_header
from veil.core.attempt import HEADER as OUTCOME_HEADER

_log = logging.getLogger(__name__)


T = TypeVar("T")

CONNECTIONS: Final = 64
CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 10.0

# Ten messages of 1 MiB, three bytes of JSON for each of theirs, and their attributes.
_RECEIVED_BYTES_MAX: Final = 64 << 20
_ANSWER_BYTES_MAX: Final = 1 << 20
# A send must not be repeated, so it keeps off connections that the service may be about to close.
_SEND_REST_S_MAX: Final = 5.0
# For the questions at a consumer's start: a service that starts at the same time gets a moment.
_START_TRIES: Final = 3
_START_BACKOFF: Final = RetryBackoff(first_s=0.3, max_s=0.8)
_ENTRY_IDS: Final = tuple(map(str, range(answers.BULK_MAX)))
_BULK_LINE: Final = f"{answers.BULK_HEADER.decode()}: 1\r\n"
_ARN: Final = re.compile(r"arn:[a-z-]+:sqs:([a-z0-9-]+):(\d{12}):([A-Za-z0-9_-]+(?:\.fifo)?)")

_encode = msgspec.json.Encoder().encode


class SqsClient:
    """A queue service that speaks SQS; made anywhere, then used from one event loop.

    Endpoint, region and profile are found by AWS's variables and files where they are not given. Raises ApiError FATAL when
    what it finds cannot be used. A receive that is cancelled closes its connection, and messages that were already on their
    way are made visible again; `close` waits for that. A batch has its errors in the places of its entries, and raises ApiError
    when the whole call failed; `reported` has, for each entry, what came of its attempt if it did not complete: Veil records it,
    other services ignore it.
    """

    # How many messages one receive or delete may name; Veil offers more than SQS's ten.
    bulk_max = BATCH_MAX

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        profile: str | None = None,
        credentials: Credentials | None = None,
        connections: int = CONNECTIONS,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        read_timeout_s: float = READ_TIMEOUT_S,
        start_tries: int = _START_TRIES,
        role: str = "consumer",
        user_agent_extra: str = "",
        environ: Mapping[str, str] = os.environ,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        if connections < 1:
            raise ValueError(f"connections={connections}: expected 1 or more")
        found = read_profile(profile, environ)
        place, self.region = find_endpoint(endpoint, region, found, environ)
        self.endpoint = place.url
        self._read_timeout_s, self._start_tries = read_timeout_s, start_tries
        self._monotonic = monotonic
        self._head = RequestHead(place, self.region, _user_agent(role, user_agent_extra), wall_ms)
        self._credentials = CredentialsSource(
            credentials,
            profile,
            endpoint_url=place.url,
            dummies_will_do=place.is_loopback,
            monotonic=monotonic,
        )
        bundle = ca_bundle(environ, found.settings) if place.secure else None
        self._pool = HttpPool(
            place,
            connections=connections,
            connect_timeout_s=connect_timeout_s,
            ssl_context=client_context(bundle) if place.secure else None,
            bundle=bundle,
        )
        self._giving_back: set[asyncio.Task[None]] = set()
        self._closed = False
        self._bulk_refused = False
        # How many messages one call may send, as the last answer to `queue_url` says.
        self.send_max = BATCH_MAX

    async def queue_url(self, name: str) -> str:
        """The URL of a queue by name, ARN or URL (which is returned as it is); ApiError FATAL when there is none."""
        if "://" in name:
            self._check_region(region_in(name), name)
            return name
        given: dict[str, Any] = {"QueueName": name}
        if name.startswith("arn:"):
            parts = _ARN.fullmatch(name)
            if parts is None:
                raise ApiError(
                    Failure.FATAL, "", f"queue {name!r}: expected an ARN like arn:aws:sqs:REGION:ACCOUNT:NAME"
                )
            self._check_region(parts[1], name)
            given = {"QueueName": parts[3], "QueueOwnerAWSAccountId": parts[2]}

        def read(answer: HttpAnswer) -> str:
            self.send_max = answers.bulk_in(answer)
            return str(answers.field(answer, "QueueUrl"))

        try:
            return await self._asked_at_start("GetQueueUrl", given, read)
        except ApiError as error:
            if not error.is_missing_queue:
                raise
            # As often as the name, the endpoint or the region is the wrong one.
            where = f"{error.message} (at {self.endpoint} in {self.region})"
            raise ApiError(error.failure, error.code, where) from None

    async def attributes(self, url: str) -> dict[str, str]:
        """All queue attributes."""
        given = {"QueueUrl": url, "AttributeNames": ["All"]}

        def read(answer: HttpAnswer) -> dict[str, str]:
            return dict(answers.field(answer, "Attributes", {}))

        return await self._asked_at_start("GetQueueAttributes", given, read)

    async def receive(
        self,
        url: str,
        *,
        count: int,
        wait_s: int,
        visibility_s: int | None = None,
        attempt_id: str | None = None,
    ) -> list[RawMessage]:
        """Up to `count` messages with all their attributes; None for the visibility means the queue's own."""
        given: dict[str, Any] = {
            "QueueUrl": url,
            "MaxNumberOfMessages": count,
            "WaitTimeSeconds": wait_s,
            "MessageAttributeNames": ["All"],
            "MessageSystemAttributeNames": ["All"],
        }
        if visibility_s is not None:
            given["VisibilityTimeout"] = visibility_s
        if attempt_id is not None:
            given["ReceiveRequestAttemptId"] = attempt_id
        asked_at_s = self._monotonic()

        def read(answer: HttpAnswer) -> list[RawMessage]:
            if self.bulk_max == BATCH_MAX and not self._bulk_refused:
                self.bulk_max = answers.bulk_in(answer)
            return answers.messages_in(answer, asked_at_s)

        try:
            return await self._call(
                "ReceiveMessage",
                given,
                read,
                # The caller would ask again anyway. What a lost answer had claimed is hidden for a window either way.
                repeatable=True,
                timeout_s=wait_s + self._read_timeout_s,
                answer_bytes_max=_RECEIVED_BYTES_MAX,
                on_orphaned=lambda answer: self._give_back(url, answer),
                for_veil=_BULK_LINE if count > BATCH_MAX else "",
            )
        except ApiError as error:
            if not self._is_bulk_refused(error, count):
                raise
        return await self.receive(
            url, count=BATCH_MAX, wait_s=wait_s, visibility_s=visibility_s, attempt_id=attempt_id
        )

    async def delete(
        self, url: str, receipts: Sequence[str], *, reported: Sequence[ReportedOutcome | None] = ()
    ) -> list[ApiError | None]:
        """Delete up to `bulk_max` by receipt."""
        count = len(receipts)
        # What is reported of errors has to fit into one header, so it travels by ten.
        if count <= BATCH_MAX or not any(each is not None and each.error_type for each in reported):
            entries = [{"Id": str(at), "ReceiptHandle": receipt} for at, receipt in enumerate(receipts)]
            try:
                return await self._batch("DeleteMessageBatch", url, entries, reported=reported)
            except ApiError as error:
                if not self._is_bulk_refused(error, count):
                    raise
        tens = [slice(at, at + BATCH_MAX) for at in range(0, count, BATCH_MAX)]
        parts = await asyncio.gather(
            *(self.delete(url, receipts[ten], reported=reported[ten]) for ten in tens)
        )
        return [answer for part in parts for answer in part]

    async def extend(
        self,
        url: str,
        changes: Sequence[tuple[str, int]],
        *,
        reported: Sequence[ReportedOutcome | None] = (),
        closing: bool = False,
    ) -> list[ApiError | None]:
        """Set the visibility of up to ten."""
        entries = [
            {"Id": str(at), "ReceiptHandle": receipt, "VisibilityTimeout": visibility_s}
            for at, (receipt, visibility_s) in enumerate(changes)
        ]
        return await self._batch(
            "ChangeMessageVisibilityBatch", url, entries, reported=reported, closing=closing
        )

    async def send(
        self,
        url: str,
        body: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        group: str | None = None,
        deduplication_id: str | None = None,
        delay_s: int | None = None,
    ) -> str:
        """Send one message; returns its id."""
        given: dict[str, Any] = {"QueueUrl": url, "MessageBody": body}
        if attributes:
            given["MessageAttributes"] = attributes
        if group is not None:
            given["MessageGroupId"] = group
        if deduplication_id is not None:
            given["MessageDeduplicationId"] = deduplication_id
        if delay_s is not None:
            given["DelaySeconds"] = delay_s
        # Sent twice it would be there twice, unless the service knows it again.
        return await self._call(
            "SendMessage",
            given,
            lambda answer: str(answers.field(answer, "MessageId")),
            repeatable=deduplication_id is not None,
        )

    async def send_batch(
        self, url: str, entries: Sequence[dict[str, Any]], *, invocation: str | None = None
    ) -> list[str | ApiError]:
        """Send up to `send_max`, given as entries without their Id: the id of each message, or in its place why not.

        A call that is repeated under the same `invocation` with the same entries is stored once by Veil.
        """
        numbered = [{"Id": str(at), **entry} for at, entry in enumerate(entries)]
        return await self._call(
            "SendMessageBatch",
            {"QueueUrl": url, "Entries": numbered},
            lambda answer: answers.sent_in(answer, len(numbered)),
            repeatable=True,
            invocation=invocation,
            for_veil=_BULK_LINE if len(numbered) > BATCH_MAX else "",
        )

    async def ask(
        self,
        action: str,
        given: dict[str, Any],
        answer_type: type[T],
        *,
        repeatable: bool,
        timeout_s: float | None = None,
        answer_bytes_max: int = _RECEIVED_BYTES_MAX,
        invocation: str | None = None,
    ) -> T:
        """Any other action of the service, its answer read as the given type; Veil's own actions are called like this.

        `repeatable`: the request may be sent again over a fresh connection when the service had closed the first at rest.
        `invocation` names the call where the caller itself may repeat it; a name is made up where it is None.
        """
        decoder = msgspec.json.Decoder(answer_type)
        return await self._call(
            action,
            given,
            lambda answer: answers.decoded(decoder, answer),
            repeatable=repeatable,
            timeout_s=timeout_s,
            answer_bytes_max=answer_bytes_max,
            invocation=invocation,
        )

    async def close(self) -> None:
        """Close every connection, cancelling what is under way."""
        self._closed = True
        await self._pool.abandon()
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=self._read_timeout_s)
        await self._pool.close()

    # ---- within

    async def _asked_at_start(self, action: str, given: dict[str, Any], read: Callable[[HttpAnswer], T]) -> T:
        call = functools.partial(self._call, action, given, read, repeatable=True)
        return await with_retries(call, _START_BACKOFF, tries=self._start_tries)

    async def _batch(
        self,
        action: str,
        url: str,
        entries: list[dict[str, Any]],
        *,
        reported: Sequence[ReportedOutcome | None] = (),
        closing: bool = False,
    ) -> list[ApiError | None]:
        if not entries:
            return []
        return await self._call(
            action,
            {"QueueUrl": url, "Entries": entries},
            lambda answer: answers.results_in(answer, len(entries)),
            repeatable=True,
            closing=closing,
            for_veil=_outcome_line(reported) + (_BULK_LINE if len(entries) > BATCH_MAX else ""),
        )

    async def _call(
        self,
        action: str,
        given: dict[str, Any],
        read: Callable[[HttpAnswer], T],
        *,
        repeatable: bool,
        timeout_s: float | None = None,
        answer_bytes_max: int = _ANSWER_BYTES_MAX,
        on_orphaned: OnOrphaned | None = None,
        closing: bool = False,
        invocation: str | None = None,
        for_veil: str = "",
    ) -> T:
        if self._closed and not closing:
            raise self._unreachable("the client was closed")
        target = action if action.startswith("Veil.") else f"AmazonSQS.{action}"
        body = _encode(given)
        invocation = invocation or str(uuid.uuid4())
        rest_s_max = REST_S_MAX if repeatable else _SEND_REST_S_MAX
        attempt, stale_met, refused_before = 1, False, False
        while True:
            credentials = self._credentials.ready() or await self._credentials.current()
            try:
                answer = await self._pool.exchange(
                    self._head.request(target, body, credentials, invocation, attempt, for_veil),
                    timeout_s=timeout_s or self._read_timeout_s,
                    answer_bytes_max=answer_bytes_max,
                    rest_s_max=rest_s_max,
                    on_orphaned=on_orphaned,
                )
            except NoAnswer as failed:
                if not (failed.stale and repeatable) or stale_met:
                    raise self._unreachable(str(failed), away=failed.refused) from failed
                # Others that rested as long are as likely to be closed: the second try gets a connection of its own.
                stale_met, rest_s_max = True, 0.0
            else:
                if answer.status == 200:
                    return read(answer)
                error = answers.error_in(answer)
                if refused_before or not wants_other_credentials(error):
                    raise error
                if await self._credentials.instead_of(credentials) is None:
                    raise error
                refused_before = True
            attempt += 1

    def _is_bulk_refused(self, error: ApiError, count: int) -> bool:
        """Whether it was for naming more than ten, which is then not done again: a node of another version may have answered, or
        a proxy may drop the header."""
        if count <= BATCH_MAX or error.failure is not Failure.REFUSED:
            return False
        self.bulk_max, self._bulk_refused = BATCH_MAX, True
        return True

    def _give_back(self, url: str, answer: HttpAnswer) -> None:
        """Messages that came for a receive that was cancelled: visible again now, instead of a window later."""
        if answer.status != 200:
            return
        try:
            receipts = answers.receipts_in(answer)
        except ApiError:
            return
        if receipts:
            task = asyncio.get_running_loop().create_task(self._release(url, receipts))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _release(self, url: str, receipts: list[str]) -> None:
        failed = 0
        for start in range(0, len(receipts), BATCH_MAX):
            batch = [(receipt, 0) for receipt in receipts[start : start + BATCH_MAX]]
            try:
                reported = [GIVEN_BACK] * len(batch)
                results = await self.extend(url, batch, reported=reported, closing=True)
                failed += sum(result is not None for result in results)
            except ApiError:
                failed += len(batch)
        if failed:
            _log.warning(
                "%d messages of a cancelled receive could not be released; they return when their window ends",
                failed,
            )

    def _check_region(self, region: str | None, queue: str) -> None:
        if region is not None and region != self.region and region_in(self.endpoint + "/") is not None:
            raise ApiError(
                Failure.FATAL, "", f"queue {queue} is in {region}, but requests go to {self.endpoint}"
            )

    def _unreachable(self, reason: str, *, away: bool = False) -> ApiError:
        return ApiError(Failure.UNREACHABLE, "", f"{self.endpoint}: {reason}", away=away)


async def with_retries(
    call: Callable[[], Awaitable[T]],
    backoff: RetryBackoff,
    *,
    tries: float = math.inf,
    passes: Callable[[ApiError], bool] = lambda error: error.may_pass,
    failed: Callable[[ApiError, float], None] = lambda error, pause_s: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Random = RANDOM,
) -> T:
    """The result of the call, which is made up to so many times while its failure may pass; `failed` is called with each failure
    and the pause before the next try."""
    failures = 0
    while True:
        try:
            return await call()
        except ApiError as error:
            if failures + 1 >= tries or not passes(error):
                raise
            pause_s = backoff.pause_s(failures, error.failure, random)
            failed(error, pause_s)
        failures += 1
        await sleep(pause_s)


def _outcome_line(reported: Sequence[ReportedOutcome | None]) -> str:
    header = write_header(dict(zip(_ENTRY_IDS, reported, strict=False)))
    return f"{OUTCOME_HEADER}: {header}\r\n" if header else ""


def _user_agent(role: str, extra: str) -> str:
    try:
        own = version("veilmq")
    except PackageNotFoundError:
        own = "0"
    agent = f"veil/{own} {role} {extra}".rstrip()
    if not (agent.isascii() and agent.isprintable()):
        raise ValueError(f"user_agent_extra={extra!r}: expected printable ASCII")
    return agent
