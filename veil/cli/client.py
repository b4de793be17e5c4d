"""A small synchronous SQS client: where to and with whose key, one connection, JSON, signed, queue names in place of URLs."""

from __future__ import annotations

import http.client
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from veil.cli.failures import (
    CommandFailed,
    EndpointRefused,
    KeyRefused,
    NotVeil,
    QueueMissing,
    ServiceError,
    TlsFailed,
    Unreachable,
)
from veil.client.api import ApiError
from veil.client.credentials import DUMMY, Credentials, Profile, read_profile, static_credentials
from veil.client.endpoint import BundleRefused, ca_bundle, client_context, problem_in_words
from veil.signing.sigv4 import sign

ENDPOINT_DEFAULT = "http://127.0.0.1:9324"
REGION_DEFAULT = "us-east-1"


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """One server to talk to: endpoint, region and key."""

    endpoint: str
    endpoint_origin: str
    region: str
    credentials: Credentials
    ca_bundle: str | None = None  # whom to trust, None for the machine's own authorities


def find_target(
    endpoint: str | None = None, region: str | None = None, environ: Mapping[str, str] = os.environ
) -> ServiceTarget:
    """The place meant by flags, then the AWS variables, then the profile, then the defaults."""
    url, url_origin = _endpoint(endpoint, environ)
    profile = read_profile(environ=environ)
    found_region = (
        region
        or environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION")
        or profile.settings.get("region")
        or REGION_DEFAULT
    )
    return ServiceTarget(
        url.rstrip("/"),
        url_origin,
        found_region,
        _credentials(profile, environ),
        ca_bundle(environ, profile.settings),
    )


def _endpoint(given: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    if given:
        return given, "--endpoint"
    for name in ("AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"):
        if environ.get(name):
            return environ[name], name
    return ENDPOINT_DEFAULT, "default"


def _credentials(profile: Profile, environ: Mapping[str, str]) -> Credentials:
    # Static keys only: single sign-on and role chains belong to the SDKs.
    try:
        return static_credentials(profile, environ) or DUMMY
    except ApiError as refused:
        raise CommandFailed(str(refused)) from None


Answer = dict[str, Any]

# Calls that change nothing more when they are made twice. A repeated send would be a second message; a
# repeated purge or removal of a queue would report the first one's success as an error.
_REPEATABLE = frozenset(
    {
        "ChangeMessageVisibility",
        "CreateQueue",
        "DeleteMessage",
        "DescribeMessage",
        "DescribeQueues",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
        "PauseQueue",
        "PeekMessages",
        "ResumeQueue",
        "SetQueueAttributes",
        "TagQueue",
        "UntagQueue",
    }
)
_VEILS_OWN = frozenset(
    {"DescribeMessage", "DescribeQueues", "PauseQueue", "PeekMessages", "ResumeQueue", "StartRedrive"}
)
_KEY_REFUSALS = frozenset(
    {
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_PAUSES_S = (0.1, 0.4)  # one try more than pauses
_ANSWER_TIMEOUT_S = 30.0
_PAGE = 1000


class Client:
    """Calls the operations of SQS, and Veil's own: a refusal is a ServiceError, no answer is Unreachable."""

    def __init__(
        self,
        target: ServiceTarget,
        *,
        timeout_s: float = _ANSWER_TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
        wall_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        parts = urlsplit(target.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointRefused(target.endpoint)
        self.target = target
        self.server_date: str | None = None  # the Date header of the last answer
        self._host = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/") + "/"
        self._timeout_s = timeout_s
        self._pause, self._wall_ms = pause, wall_ms
        self._urls: dict[str, str] = {}
        # Without the process: one person's receive and delete are two commands.
        self._user_agent = f"veil/{version('veilmq')} command"
        self._name = parts.hostname
        try:
            self._connection = (
                http.client.HTTPSConnection(
                    parts.hostname, parts.port, timeout=timeout_s, context=client_context(target.ca_bundle)
                )
                if parts.scheme == "https"
                else http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
            )
        except ValueError:  # a port that is no number
            raise EndpointRefused(target.endpoint) from None
        except BundleRefused as refused:
            raise CommandFailed(str(refused)) from None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def call(self, action: str, parameters: Answer | None = None, *, wait_s: int = 0) -> Answer:
        """The answer to one operation; `wait_s` is how long the server may hold it back."""
        target = f"Veil.{action}" if action in _VEILS_OWN else f"AmazonSQS.{action}"
        body = json.dumps(parameters or {}).encode()
        invocation = str(uuid.uuid4())  # one id over all tries, as SDKs do
        pauses = iter(_PAUSES_S if action in _REPEATABLE else ())
        while True:
            try:
                status, text = self._exchange(target, body, invocation, self._timeout_s + wait_s)
                if status < 500:
                    return self._read(status, text)
                failure: Exception = _error(status, text)
            except ConnectionRefusedError as error:
                raise Unreachable(self.target.endpoint, _reason(error), refused=True) from None
            except (OSError, http.client.HTTPException) as error:
                in_words = problem_in_words(error, self._name, self.target.ca_bundle)
                if in_words is not None:  # trying again would meet the same certificate
                    raise TlsFailed(in_words) from None
                failure = Unreachable(self.target.endpoint, _reason(error))
            pause_s = next(pauses, None)
            if pause_s is None:
                raise failure
            self._pause(pause_s)

    def veils_own(self, action: str, queue: str | None, parameters: Answer | None = None) -> Answer:
        """One of Veil's own operations, on a queue unless there is none; raises NotVeil where the server is another."""
        try:
            return (
                self.call(action, parameters) if queue is None else self.on_queue(action, queue, parameters)
            )
        except ServiceError as error:
            if error.code in ("UnknownOperationException", "InvalidAction"):
                raise NotVeil(self.target.endpoint, action) from None
            raise

    def descriptions(self, prefix: str = "") -> Iterator[Answer]:
        """How every queue stands, page by page; raises NotVeil."""
        query: Answer = {"MaxResults": _PAGE, **({"QueueNamePrefix": prefix} if prefix else {})}
        while True:
            answer = self.veils_own("DescribeQueues", None, query)
            yield from answer.get("Queues", ())
            if not answer.get("NextToken"):
                return
            query["NextToken"] = answer["NextToken"]

    def queue_url(self, name: str) -> str:
        """The URL of a queue by its name; a URL is taken as it is."""
        if "://" in name:
            return name
        if name not in self._urls:
            try:
                self._urls[name] = str(self.call("GetQueueUrl", {"QueueName": name})["QueueUrl"])
            except ServiceError as refusal:
                if refusal.is_missing_queue:
                    raise QueueMissing(name, self.target.endpoint, self.target.region) from None
                raise
        return self._urls[name]

    def on_queue(
        self, action: str, queue: str, parameters: Answer | None = None, *, wait_s: int = 0
    ) -> Answer:
        """One operation on the queue of that name."""
        return self.call(action, {"QueueUrl": self.queue_url(queue), **(parameters or {})}, wait_s=wait_s)

    def queue_names(self, prefix: str = "") -> Iterator[str]:
        """The names of all queues, page by page."""
        query: Answer = {"MaxResults": _PAGE, **({"QueueNamePrefix": prefix} if prefix else {})}
        while True:
            answer = self.call("ListQueues", query)
            for url in answer.get("QueueUrls", ()):
                name = str(url).rpartition("/")[2]
                self._urls[name] = str(url)
                yield name
            if not answer.get("NextToken"):
                return
            query["NextToken"] = answer["NextToken"]

    def attributes(self, queue: str, *names: str) -> dict[str, str]:
        """The queue's attributes, all unless some are named."""
        answer = self.on_queue("GetQueueAttributes", queue, {"AttributeNames": list(names) or ["All"]})
        return dict(answer.get("Attributes", {}))

    def each_queue(self, prefix: str = "") -> Iterator[tuple[str, dict[str, str]]]:
        """The name and attributes of every queue; those removed since they were listed are left out."""
        for name in list(self.queue_names(prefix)):
            try:
                yield name, self.attributes(name)
            except ServiceError as error:
                if not error.is_missing_queue:
                    raise

    def arn(self, queue: str) -> str:
        return self.attributes(queue, "QueueArn")["QueueArn"]

    def _read(self, status: int, text: bytes) -> Answer:
        try:
            return _read(status, text)
        except ServiceError as refusal:
            if refusal.code not in _KEY_REFUSALS:
                raise
            key = self.target.credentials
            raise KeyRefused(refusal, self.target.endpoint, None if key is DUMMY else key.key_id) from None

    def _exchange(self, target: str, body: bytes, invocation: str, timeout_s: float) -> tuple[int, bytes]:
        region, key = self.target.region, self.target.credentials
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "User-Agent": self._user_agent,
            "X-Amz-Target": target,
            "amz-sdk-invocation-id": invocation,
        }
        signed = sign(
            method="POST",
            host=self._host,
            path=self._path,
            headers=headers,
            body=body,
            key_id=key.key_id,
            secret=key.secret,
            region=region,
            now_ms=self._wall_ms(),
            session_token=key.session_token,
        )
        connection = self._connection
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        try:
            connection.request("POST", self._path, body, {"Host": self._host, **headers, **signed})
            answer = connection.getresponse()
            self.server_date = answer.getheader("Date")
            return answer.status, answer.read()
        except BaseException:
            # Also for Ctrl-C: an answer that is still to come must not be taken for the next one's.
            connection.close()
            raise


def _read(status: int, text: bytes) -> Answer:
    if status >= 300:
        raise _error(status, text)
    try:
        answer = json.loads(text) if text.strip() else {}
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise ServiceError("NotSqs", "the answer is not JSON; is this an SQS endpoint?", status)
    return answer


def _error(status: int, text: bytes) -> ServiceError:
    try:
        answer = json.loads(text)
        code = str(answer["__type"]).rpartition("#")[2]
        return ServiceError(code, str(answer.get("message") or answer.get("Message") or ""), status)
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"HTTP {status}", text[:200].decode("utf-8", "replace").strip(), status)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
