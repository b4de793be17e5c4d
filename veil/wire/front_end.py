"""The SQS front end: a request in either protocol goes in, its answer comes out, and nothing else ever does."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache
from types import ModuleType
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, unquote

import msgspec

from veil.core.errors import StoreError, StoreUnavailable, VeilError
from veil.core.limits import RECEIVE_MAX
from veil.service.service import Service
from veil.wire import aws_json, aws_query
from veil.wire.actions import ACTIONS, Action
from veil.wire.call import Call, QueueUrls, read_path
from veil.wire.exchange import AnswerCounts, Handler, Request, Response, request_ids
from veil.wire.large import LARGE_BYTES, check_room, in_thread, is_large_form
from veil.wire.request_errors import ActionMissing, ActionUnknown, AnswersTooLarge, ChangeByGet
from veil.wire.shapes import QueueMention
from veil.wire.sigv4 import Verifier, is_region
from veil.wire.sqs_codes import INTERNAL_FAILURE, Refusal, Situation, worded

_log = logging.getLogger(__name__)

DEFAULT_ACCOUNT: Final = "000000000000"
DEFAULT_REGION: Final = "us-east-1"
BULK_MAX: Final = 1_000
KEY_ID_CHARS_MAX: Final = 128  # of one that nobody verifies
OTHER: Final = "other"
_BY_TARGET: Final = {f"AmazonSQS.{name}": name for name in ACTIONS}
_ACTION_BYTES_MAX: Final = 64
# Who holds what, what was tried, and how often what happened.
_OF_THE_OWNER: Final = frozenset(("Veil.PeekMessages", "Veil.DescribeMessage", "Veil.DescribeQueues"))


def action_of(request: Request) -> str:
    """The SQS action that the request names, or `other`: what a client makes up becomes no label of metrics."""
    target = request.headers.get("x-amz-target")
    if target is not None:
        return _BY_TARGET.get(target, OTHER)
    body = request.body
    start = 0 if body.startswith(b"Action=") else body.find(b"&Action=") + 1
    if start or body.startswith(b"Action="):
        raw = body[start + 7 : start + 7 + _ACTION_BYTES_MAX].partition(b"&")[0]
        name = raw.decode("ascii", "replace")
    else:
        name = f"&{request.query}".partition("&Action=")[2].partition("&")[0]
    return name if name in ACTIONS else OTHER


_C = TypeVar("_C", bound=Call)


class FrontEnd:
    """Answers calls: a request goes in, its answer comes out, and nothing else ever does."""

    def __init__(self, answers: AnswerCounts | None) -> None:
        self._request_ids = request_ids()
        self._answers = AnswerCounts() if answers is None else answers

    async def _answer(
        self,
        call: _C,
        run: Callable[[_C, str], Awaitable[Response]],
        refuse: Callable[[_C, VeilError | None, str], Response],
    ) -> Response:
        """What `run` makes of the call, or `refuse` of an error; of None where nobody foresaw it."""
        request_id = next(self._request_ids)
        try:
            response = await run(call, request_id)
            if call.undelivered is not None:
                response.undelivered, response.delivering = call.undelivered, call.delivering
            if call.headers:
                response.headers += call.headers
        except asyncio.CancelledError:
            call.take_back()
            raise
        except VeilError as error:
            # Of a database that is away the store itself tells, once; a line for each request would be thousands a second.
            if isinstance(error, StoreUnavailable):
                _log.debug("%.80r: %s", call.action, error)
            elif isinstance(error, StoreError):
                _log.error("%.80r: the store failed: %s", call.action, error)
            elif isinstance(error, AnswersTooLarge):
                call.take_back()
            response = refuse(call, error, request_id)
        except Exception:
            # The client sees no more than the request id; what was received for it must not stay hidden.
            _log.exception("request %s (%.80r) failed", request_id, call.action)
            call.take_back()
            response = refuse(call, None, request_id)
        self._answers[call.label, response.status // 100] += 1
        return response


def unverified_scope(request: Request) -> tuple[str | None, str | None]:
    """The key id and region that a request claims, unchecked; None for what cannot be read. Never raises."""
    text = request.headers.get("authorization", "")
    start = text.find("Credential=")
    if start >= 0:
        start += 11
        end = text.find(",", start)
        return _read_scope(text[start:] if end < 0 else text[start:end])
    text = request.query
    start = text.find("X-Amz-Credential=")
    if start < 0:
        return None, None
    start += 17
    end = text.find("&", start)
    return _read_scope(unquote(text[start:] if end < 0 else text[start:end]))


@lru_cache(maxsize=1_024)  # a client claims the same scope all day
def _read_scope(text: str) -> tuple[str | None, str | None]:
    """The key id and region in a credential; None for what cannot be read."""
    parts = text.split("/", 3)
    region = parts[2] if len(parts) > 3 and is_region(parts[2]) else None
    return parts[0] or None, region


class SqsFrontEnd(FrontEnd):
    """Speaks AWS JSON 1.0 and AWS Query over one service; without a verifier everybody is the default account."""

    def __init__(
        self,
        service: Service,
        *,
        verifier: Verifier | None,
        default_account: str = DEFAULT_ACCOUNT,
        default_region: str = DEFAULT_REGION,
        base_url: str | None = None,
        scheme: str = "http",
        bulk: bool = False,
        answers: AnswerCounts | None = None,
        relay: Handler | None = None,
    ) -> None:
        """`base_url` fixes the start of queue URLs, which else follow `scheme` and the Host header; `bulk` lets one
        call name a thousand messages instead of ten.
        What only the process with the store can tell is answered by `relay`, where that is another one."""
        super().__init__(answers)
        self._service = service
        self._verifier = verifier
        self._default_account = default_account
        self._default_region = default_region
        self._urls = QueueUrls(base_url, scheme)
        self._count_max = BULK_MAX if bulk else RECEIVE_MAX
        self._relay = relay

    def handle(self, request: Request) -> Awaitable[Response]:
        """The answer to a request. Awaiting it raises nothing but CancelledError."""
        target, service = request.headers.get("x-amz-target"), self._service
        if target is None:
            call = Call(service, self._urls, self._count_max, request, "", action_of(request), query=True)
            return self._answer(call, self._run_query, _refuse_query)
        if self._relay is not None and target in _OF_THE_OWNER:
            return self._relay(request)
        name = _BY_TARGET.get(target)
        if name is None:
            call = Call(service, self._urls, self._count_max, request, target.rpartition(".")[2], OTHER)
        else:
            call = Call(service, self._urls, self._count_max, request, name, name)
        return self._answer(call, self._run_json, _refuse_json)

    async def _run_json(self, call: Call, request_id: str) -> Response:
        request, body = call.request, call.request.body
        is_large = len(body) > LARGE_BYTES
        caller = await in_thread(self._caller, request) if is_large else self._caller(request)
        call.account, call.key_id, call.region = caller
        target = aws_json.TARGETS.get(request.headers["x-amz-target"])
        if target is None or request.method != "POST":
            raise ActionUnknown(call.action)
        if is_large:
            given = await in_thread(aws_json.read_input, target, body)
        else:
            given = aws_json.read_input(target, body)
        if request.path != "/" and getattr(given, "QueueUrl", None) == "":
            given.QueueUrl = request.path
        output = await target.run(call, given)
        if call.answer_bytes <= LARGE_BYTES:
            return aws_json.answer(output, request_id)
        check_room(request, call.answer_bytes)
        return await in_thread(aws_json.answer, output, request_id, True)

    async def _run_query(self, call: Call, request_id: str) -> Response:
        request = call.request
        if request.method not in ("GET", "POST"):
            headers = (("x-amzn-RequestId", request_id), ("Allow", "GET, POST"))
            return Response(405, b"", aws_query.CONTENT_TYPE, headers)
        is_large = is_large_form(request)
        action, given = await in_thread(self._read_form, call) if is_large else self._read_form(call)
        output = await action.run(call, given)
        answer = (action.name, output, request_id, aws_query.wants_json(request))
        if call.answer_bytes <= LARGE_BYTES:
            return aws_query.answer(*answer)
        check_room(request, call.answer_bytes)
        return await in_thread(aws_query.answer, *answer, True)

    def _read_form(self, call: Call) -> tuple[Action, Any]:
        request = call.request
        # Whose it is comes first: what a stranger sends is not read, however large.
        call.account, call.key_id, call.region = self._caller(request)
        parameters = aws_query.read_parameters(request.query, request.body)
        name = call.action = parameters.get("Action", "")
        if not name:
            raise ActionMissing
        action = ACTIONS.get(name)
        queue_path = request.path if read_path(request.path) is not None else None
        if action is None or (queue_path is not None and not action.on_queue):
            raise ActionUnknown(name)
        if request.method == "GET" and not action.only_reads and not self._is_signed(call):
            raise ChangeByGet(name)
        return action, aws_query.read_input(action, parameters, queue_path)

    def _caller(self, request: Request) -> tuple[str | None, str, str]:
        """Account, key id and region; the account is None for a request that nobody signed."""
        verifier = self._verifier
        if verifier is None:
            key_id, region = unverified_scope(request)
            return self._default_account, (key_id or "")[:KEY_ID_CHARS_MAX], region or self._default_region
        signed = verifier.verify(request, self._service.clock.wall_ms())
        if signed is None:
            return None, "", self._default_region
        key, region = signed
        return key.account, key.key_id, region

    def _is_signed(self, call: Call) -> bool:
        # Without keys nobody verifies, and a page can write a presigned URL; the header it cannot set without asking
        # first. The scheme counts: for http://user:password@host a browser sends Basic by itself.
        if self._verifier is not None:
            return call.account is not None
        return call.request.headers.get("authorization", "").startswith("AWS")


def _refuse_json(call: Call, error: VeilError | None, request_id: str) -> Response:
    return aws_json.refuse(_worded(call, error), request_id)


def _refuse_query(call: Call, error: VeilError | None, request_id: str) -> Response:
    if isinstance(error, ActionMissing):
        return aws_query.refuse_without_action(request_id)
    return aws_query.refuse(_worded(call, error), request_id, as_json=aws_query.wants_json(call.request))


def _worded(call: Call, error: VeilError | None) -> Refusal:
    return INTERNAL_FAILURE if error is None else worded(error, Situation(call.action, call.query))


# ---- tracing: one OpenTelemetry span for each request of an SQS client, within the trace of its caller
#
# It is on where a tracer provider was set up before the server, as `opentelemetry-instrument veil serve` does; else a request
# passes nothing of this.

_NONE_SET_UP: Final = ("ProxyTracerProvider", "NoOpTracerProvider")
_READ_BYTES_MAX: Final = 65_536  # of a body, to name the queue; beyond it the span goes without


_read_mention: Final = msgspec.json.Decoder(QueueMention).decode


def traced(handler: Handler) -> Handler:
    """The handler itself, or with a span around each call where spans would go somewhere."""
    # Whoever sets up a provider has imported it: importing it here would cost everybody else.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None or type(trace.get_tracer_provider()).__name__ in _NONE_SET_UP:
        return handler
    tracer = trace.get_tracer("veil.server")

    async def handle(request: Request) -> Response:
        span = _begun(trace, tracer, request)
        try:
            response = await handler(request)
        except BaseException as error:
            _end(trace, span, None, type(error).__qualname__)
            raise
        _end(trace, span, response.status, _error_in(response))
        return response

    return handle


def _begun(trace: ModuleType, tracer: Any, request: Request) -> Any:
    """A span within the caller's, or None: whatever is wrong with tracing is no reason to refuse a request."""
    try:
        from opentelemetry import propagate

        action, queue = action_of(request), _queue_in(request)
        attributes = {
            "messaging.system": "aws_sqs",
            "rpc.system": "aws-api",
            "rpc.service": "SQS",
            "rpc.method": action,
            "http.request.method": request.method,
            "client.address": request.peer,
        }
        if queue:
            attributes["messaging.destination.name"] = queue
        return tracer.start_span(
            f"{action} {queue}" if queue else action,
            context=propagate.extract(request.headers),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
        )
    except Exception:
        _log.debug("no span could be started", exc_info=True)
        return None


def _end(trace: ModuleType, span: Any, status: int | None, error: str) -> None:
    if span is None:
        return
    try:
        if status is not None:
            span.set_attribute("http.response.status_code", status)
        if error:
            span.set_attribute("error.type", error)
        if status is None or status >= 500:  # what the caller did wrong is no failure of the server
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        span.end()
    except Exception:
        _log.debug("a span could not be recorded", exc_info=True)


def _error_in(response: Response) -> str:
    """The code of a refusal, as SDKs name it."""
    if response.status < 400:
        return ""
    told = dict(response.headers).get("x-amzn-query-error", "")
    return told.partition(";")[0] or str(response.status)


def _queue_in(request: Request) -> str:
    """The name of the queue that the request is about, if it can be read at little cost."""
    if len(request.body) > _READ_BYTES_MAX:
        return ""
    if "x-amz-target" in request.headers:
        try:
            named = _read_mention(request.body)
        except msgspec.DecodeError:
            return ""
        url, name = named.queue_url, named.queue_name
    else:
        form = parse_qs(f"{request.query}&{request.body.decode('ascii', 'replace')}", max_num_fields=1_000)
        url = form.get("QueueUrl", [request.path])[0]
        name = form.get("QueueName", [""])[0]
    return name or url.rstrip("/").rpartition("/")[2]
