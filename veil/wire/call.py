"""One call of an action: who asks, where, and the queue they may touch."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from hashlib import blake2b
from urllib.parse import unquote

import msgspec

from veil.core.attempt import ANY_ENTRY, HEADER, ReportedOutcome, read_header
from veil.core.clock import grace_ms
from veil.core.errors import AccessDenied, QueueMissing
from veil.core.limits import SECOND_MS
from veil.core.message import Caller, StoredMessage
from veil.core.policy import OWNER_ONLY_ACTIONS, evaluate, is_account, parse_policy
from veil.core.queue import Queue, QueueKey
from veil.service.receive import give_back
from veil.service.service import Service
from veil.signing.sigv4 import path_segments
from veil.wire.exchange import Request
from veil.wire.large import answer_bytes
from veil.wire.request_errors import AddressRefused, ParameterRefused
from veil.wire.shapes import ReceiptEntry

# ---- queue URLs
#
# SDKs for JavaScript, Ruby and PHP and the old ones for Java send to the URL's own host, so a URL must be reachable by the
# client that asked for it. On the way in the host says nothing: a queue is its account and its name.

_KEPT_MAX = 4_096
_KEPT_CHARS_MAX = 256


class QueueUrls:
    def __init__(self, base_url: str | None = None, scheme: str = "http") -> None:
        self._base_url = base_url.rstrip("/") if base_url else None
        self.scheme = scheme
        # Clients send the same few texts with every request. Emptied when full, since a client may make texts up.
        self._keys: dict[tuple[str, str, str], QueueKey] = {}

    def key(self, text: str, region: str, account: str) -> QueueKey:
        """The key behind a queue URL, a path or a bare name; the account is the one that a bare name belongs to."""
        kept = self._keys.get((text, region, account))
        if kept is not None:
            return kept
        path = _path_of(text)
        named = read_path(path)
        if named is None:
            # AWS distinguishes them: no URL or a host alone is a queue that is not there, a path without a name is no address.
            raise AddressRefused(text) if path else QueueMissing(text[:_KEPT_CHARS_MAX])
        key = QueueKey(region, named[0] or account, named[1])
        if len(text) <= _KEPT_CHARS_MAX:
            if len(self._keys) >= _KEPT_MAX:
                self._keys.clear()
            self._keys[text, region, account] = key
        return key

    def url(self, key: QueueKey, request: Request) -> str:
        """The URL of a queue, for the client that sent the request."""
        return f"{self.base(request)}{key.account}/{key.name}"

    def base(self, request: Request) -> str:
        """The address of the server, for the client that sent the request."""
        if self._base_url is not None:
            return f"{self._base_url}/"
        return f"{self.scheme}://{request.headers.get('host') or 'localhost'}/"


def read_path(path: str) -> tuple[str | None, str] | None:
    """The account, if the path has one, and the name; None for a path that names no queue."""
    # The last two parts count, so that a proxy may serve us under a prefix.
    parts = [unquote(part) for part in path_segments(path)[-2:]]
    if not parts:
        return None
    account = parts[0] if len(parts) == 2 and is_account(parts[0]) else None
    return account, parts[-1]


def _path_of(text: str) -> str:
    start = text.find("://")
    if start >= 0:
        slash = text.find("/", start + 3)
        text = text[slash:] if slash >= 0 else ""
    return text.partition("?")[0]


# ---- page tokens

_CHARS_MAX = 512


def write_page_token(last: str) -> str:
    """A token for what follows that name."""
    return urlsafe_b64encode(last.encode()).decode("ascii")


def read_page_token(token: str) -> str:
    """The name behind a token; raises ParameterRefused for a text that we cannot have written."""
    try:
        if len(token) <= _CHARS_MAX:
            last = urlsafe_b64decode(token).decode("ascii")
            if write_page_token(last) == token:  # the decoder skips what is not of its alphabet
                return last
    except (binascii.Error, ValueError):
        pass
    raise ParameterRefused("NextToken", token, "Invalid or expired next token.")


ANONYMOUS = "anonymous"
GRACE_HEADER = "x-veil-lease-grace"  # seconds
# For at least how many seconds a receive waited before its messages' windows began. The clock of a database is known roughly.
WAITED_HEADER = "x-veil-waited"
_WAITED_DOUBT_MS = 250
# A client that sends it may name so many messages in a call; answers to receives and to GetQueueUrl offer it.
BULK_HEADER = "x-veil-bulk"
BULK_ASKED_MAX = 100  # longer calls would keep everybody else waiting
BULK_OFFER = ((BULK_HEADER, str(BULK_ASKED_MAX)),)
_USER_AGENT_CHARS_MAX = 256


class Call(msgspec.Struct):
    """What an action needs to know besides its input; lives for one request."""

    # Where it is made: the same for all of a front end.
    service: Service
    urls: QueueUrls
    bulk_max: int  # how many messages one call may name
    request: Request
    action: str
    label: str  # under which its answer is counted
    query: bool = False  # the Query protocol
    account: str | None = None  # None: nobody we know
    key_id: str = ""  # of the signature; what the request claims, where signatures are not verified
    region: str = ""
    undelivered: Callable[[], None] | None = None
    delivering: Callable[[], Awaitable[None]] | None = None
    headers: tuple[tuple[str, str], ...] = ()  # that the answer has besides those of every answer
    answer_bytes: int = 0  # about how many the answer will have, where it can be large

    def received(self, queue: Queue, messages: Sequence[StoredMessage], caller: Caller) -> None:
        """The answer has these messages: they are given back if it cannot be delivered.

        From here to the socket nothing may wait but the encoding of a large answer and `delivering`, which are ready to be
        cancelled: otherwise a cancelled request would keep its messages hidden.
        """
        service = self.service
        self.answer_bytes = answer_bytes(messages)
        self.undelivered = lambda: give_back(service, queue, messages, caller=caller)
        if service.owner is not None:
            self.delivering = partial(service.owner.delivering, messages[0].seq)

    def take_back(self) -> None:
        """Give back what was received for an answer that is not given: it must not stay hidden."""
        if self.undelivered is not None:
            self.undelivered()

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

    def reported(
        self, queue: Queue, entries: Sequence[ReceiptEntry] | None = None
    ) -> Sequence[ReportedOutcome | None]:
        """What the request reports of the attempts that it ends, entry by entry, and () where it reports nothing; a header that
        is not understood reports nothing, and is counted."""
        text = self.request.headers.get(HEADER)
        if text is None:
            return ()
        reported = read_header(text, (ANY_ENTRY,) if entries is None else [entry.Id for entry in entries])
        if reported is None:
            self.service.tallies["outcome_ignored", queue.id] += 1
            return ()
        if self.service.rules.error_texts:
            return reported
        return [each and msgspec.structs.replace(each, error_text=None, traceback=None) for each in reported]

    def count_max(self, asked: int) -> int:
        """How many messages the call may name, given how many it does: SQS's ten, unless the server or the request says more."""
        if asked <= self.bulk_max or BULK_HEADER not in self.request.headers:
            return self.bulk_max
        return max(self.bulk_max, BULK_ASKED_MAX)

    def announce_grace(self, queue: Queue) -> None:
        """Say with the answer how long after the server's own trouble a lease of the queue stays open."""
        if self.service.rules.lease_grace:
            self.headers = _grace_of(queue.settings.visibility_s)

    def announce_wait(self, began_ms: int, message: StoredMessage) -> None:
        """Say with the answer for how long the receive waited: a client that must count windows from before its request need not
        take that off them. Not of a window that a repeated receive begins anew."""
        waited_s = ((message.received_at_ms or 0) - began_ms - _WAITED_DOUBT_MS) // SECOND_MS
        if waited_s > 0:
            self.headers += ((WAITED_HEADER, str(waited_s)),)

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
            raise AccessDenied(self.action, self.urls.base(self.request))
        return self.account

    def url(self, queue: Queue) -> str:
        return self.urls.url(queue.key, self.request)

    def queue(self, url: str) -> Awaitable[Queue]:
        """The queue behind the URL, if it exists and the caller may do this action on it."""
        # A bare name is one of the caller's own queues; nobody has none, and is refused like any stranger.
        return self.permitted(self.urls.key(url, self.region, self.account or ANONYMOUS))

    async def permitted(self, key: QueueKey) -> Queue:
        """The queue of that key; raises QueueMissing to its owner only, so that strangers learn nothing by asking."""
        queue = await self.service.store.find_queue(key)
        is_own = self.account == key.account
        if queue is None:
            if is_own:
                raise QueueMissing(key.name)
            raise AccessDenied(self.action, self.urls.url(key, self.request))
        policy = queue.settings.policy
        # The owner may always do what nobody else can be granted: otherwise a policy that denies everybody
        # everything could never be taken back.
        if is_own and (policy is None or self.action in OWNER_ONLY_ACTIONS):
            return queue
        if policy is None or not evaluate(
            _read_policy(policy),
            caller_account=self.account,
            owner_account=key.account,
            action=self.action,
            resource_arn=key.arn,
            context=self._facts(),
        ):
            raise AccessDenied(self.action, self.url(queue))
        return queue

    def _facts(self) -> dict[str, str]:
        request, epoch_s = self.request, self.service.clock.wall_ms() // 1000
        facts = {
            "aws:currenttime": datetime.fromtimestamp(epoch_s, UTC).isoformat(),
            "aws:epochtime": str(epoch_s),
            "aws:requestedregion": self.region,
            "aws:securetransport": "true" if self.urls.scheme == "https" else "false",
            "aws:useragent": request.headers.get("user-agent", ""),
        }
        if request.peer:
            facts["aws:sourceip"] = _address(request.peer)
        if self.account is not None:
            facts["aws:principalaccount"] = self.account
            # Whoever has a key acts for its account.
            facts["aws:principalarn"] = f"arn:aws:iam::{self.account}:root"
            facts["aws:principaltype"] = "Account"
            facts["aws:userid"] = self.account
        return facts


# Queues keep the text, which was checked when it was set; reading it takes longer than a whole request.
_read_policy = lru_cache(maxsize=1_024)(parse_policy)


@lru_cache(maxsize=1_024)
def _grace_of(visibility_s: int) -> tuple[tuple[str, str], ...]:
    return ((GRACE_HEADER, f"{grace_ms(visibility_s) / 1000:g}"),)


@lru_cache(maxsize=4_096)  # the same few callers come all day
def _known_caller(account: str | None, key_id: str, user_agent: str, peer: str) -> Caller:
    return Caller(account, key_id, user_agent, _address(peer))


def _address(peer: str) -> str:
    """The address in `1.2.3.4:56`, `[::1]:56` or a bare address."""
    if peer.startswith("["):
        return peer[1:].partition("]")[0]
    return peer.partition(":")[0] if peer.count(":") == 1 else peer
