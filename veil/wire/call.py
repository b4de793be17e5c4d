"""One call of an action: who asks, where, and the queue they may touch."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b

from veil.core.errors import AccessDenied, QueueMissing
from veil.core.message import Caller
from veil.core.policy import OWNER_ONLY_ACTIONS, evaluate, parse_policy
from veil.core.queue import Queue, QueueKey
from veil.service.queues import find_queue
from veil.service.service import Service
from veil.wire.exchange import Request
from veil.wire.queue_urls import QueueUrls
from veil.wire.request_errors import ParameterMissing
from veil.wire.sigv4_errors import SignatureMissing

ANONYMOUS = "anonymous"
_USER_AGENT_CHARS_MAX = 256


class Call:
    """What an action needs to know besides its input; lives for one request."""

    __slots__ = (
        "account",
        "action",
        "answer_bytes",
        "bulk_max",
        "key_id",
        "query",
        "region",
        "request",
        "service",
        "undelivered",
        "urls",
    )

    def __init__(
        self,
        service: Service,
        urls: QueueUrls,
        request: Request,
        action: str,
        account: str | None,
        key_id: str,
        region: str,
        query: bool,
        bulk_max: int,
    ) -> None:
        self.service = service
        self.urls = urls
        self.request = request
        self.action = action
        self.account = account  # None: nobody we know
        self.key_id = key_id  # of the signature; what the request claims, where signatures are not verified
        self.region = region
        self.query = query  # the Query protocol
        self.bulk_max = bulk_max  # how many messages one receive, delete or extend may name
        self.undelivered: Callable[[], None] | None = None
        self.answer_bytes = 0  # about how many the answer will have, where it can be large

    @property
    def sender(self) -> str:
        """The caller as receivers see it."""
        return self.account or ANONYMOUS

    @property
    def caller(self) -> Caller:
        """The caller as the journal names it."""
        request = self.request
        user_agent = request.headers.get("user-agent", "")
        return _known_caller(self.account, self.key_id, user_agent[:_USER_AGENT_CHARS_MAX], request.peer)

    def retry_key(self) -> bytes | None:
        """What names this call over the SDK's repetitions of it; None for a client that gives no such id.

        SDKs keep the invocation id over the retries of one call. The account and the body are part of the key, so that
        an id that is used again for something else, or guessed, brings nobody else's answer.
        """
        invocation = self.request.headers.get("amz-sdk-invocation-id")
        if not invocation:
            return None
        named = f"{self.account}\n{invocation}\n{self.action}\n".encode()
        return blake2b(named + self.request.body, digest_size=16).digest()

    def owner(self) -> str:
        """The caller's account, for actions that nobody unknown may do."""
        if self.account is None:
            raise SignatureMissing
        return self.account

    def url(self, queue: Queue) -> str:
        """The queue's URL, reachable by this caller."""
        return self.urls.url(queue.key, self.request)

    async def queue(self, url: str) -> Queue:
        """The queue behind the URL, if it exists and the caller may do this action on it."""
        if not url:
            raise ParameterMissing("QueueUrl")
        # A bare name is one of the caller's own queues; nobody has none, and is refused below like any stranger.
        key = self.urls.key(url, self.region, self.account or ANONYMOUS)
        if key.account == self.account:
            # Nearly every request: its own queue, without a policy. The rest is for `permitted` to say.
            queue = await self.service.store.find_queue(key)
            if queue is not None and queue.settings.policy is None:
                return queue
        return await self.permitted(key)

    async def permitted(self, key: QueueKey) -> Queue:
        """The queue of that key; raises QueueMissing to its owner only, so that strangers learn nothing by asking."""
        try:
            queue = await find_queue(self.service, key)
        except QueueMissing:
            if self.account != key.account:
                raise AccessDenied(self.action, self.urls.url(key, self.request)) from None
            raise
        if self.account == key.account:
            # The owner may always do what nobody else can be granted: otherwise a policy that denies everybody
            # everything could never be taken back.
            if queue.settings.policy is None or self.action in OWNER_ONLY_ACTIONS:
                return queue
        elif queue.settings.policy is None:
            raise AccessDenied(self.action, self.url(queue))
        self._ask_policy(queue)
        return queue

    def owns(self, key: QueueKey) -> None:
        """Raise AccessDenied unless the key lies in the caller's own account."""
        if self.owner() != key.account:
            raise AccessDenied(self.action, key.arn)

    def _ask_policy(self, queue: Queue) -> None:
        policy = queue.settings.policy
        if not evaluate(
            None if policy is None else _read_policy(policy),
            caller_account=self.account,
            owner_account=queue.key.account,
            action=self.action,
            resource_arn=queue.key.arn,
            context=self._facts(),
        ):
            raise AccessDenied(self.action, self.url(queue))

    def _facts(self) -> dict[str, str]:
        request = self.request
        facts = {
            "aws:securetransport": "true" if self.urls.scheme == "https" else "false",
            "aws:useragent": request.header("user-agent"),
        }
        if request.peer:
            facts["aws:sourceip"] = _address(request.peer)
        if self.account is not None:
            facts["aws:principalaccount"] = self.account
            facts["aws:principaltype"] = "Account"
        return facts


# Queues keep the text, which was checked when it was set; reading it takes longer than a whole request.
_read_policy = lru_cache(maxsize=1_024)(parse_policy)


@lru_cache(maxsize=4_096)  # the same few callers come all day
def _known_caller(account: str | None, key_id: str, user_agent: str, peer: str) -> Caller:
    return Caller(account, key_id, user_agent, _address(peer))


def _address(peer: str) -> str:
    """The address in `1.2.3.4:56`, `[::1]:56` or a bare address."""
    if peer.startswith("["):
        return peer[1:].partition("]")[0]
    return peer.partition(":")[0] if peer.count(":") == 1 else peer
