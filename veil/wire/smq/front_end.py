"""The SMQ front end: a request goes in, its answer comes out, and nothing else ever does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from veil.core.errors import StoreError, VeilError
from veil.service.service import Service
from veil.wire.call import CallPlace, QueueUrls
from veil.wire.exchange import AnswerCounts, Request, Response, request_ids
from veil.wire.front_end import DEFAULT_ACCOUNT, DEFAULT_REGION, KEY_ID_CHARS_MAX, OTHER
from veil.wire.large import LARGE_BYTES, in_thread
from veil.wire.request_errors import AnswersTooLarge
from veil.wire.smq import messages, queues
from veil.wire.smq.call import BATCH_MAX, SmqCall, SmqVerifier, check_digest, claimed_key_id, route
from veil.wire.smq.codes import INTERNAL, SmqRefused, worded
from veil.wire.smq.xml import Reply, answer, refuse

_log = logging.getLogger(__name__)

# In front of an operation, among the actions that are counted: SQS has some of the same name.
LABEL: Final = "Smq."
# A receive hides messages, and nothing shows that no web page had a browser ask for it.
_RECEIVE_REFUSED: Final = (
    "A receive without an Authorization or x-mns-version header is refused, because any web page could make a "
    "browser send it."
)

_RUN: Final[Mapping[str, Callable[[SmqCall], Awaitable[Reply]]]] = {
    "CreateQueue": queues.create,
    "SetQueueAttributes": queues.set_attributes,
    "GetQueueAttributes": queues.get_attributes,
    "DeleteQueue": queues.delete,
    "ListQueue": queues.list_page,
    "GetAccountAttributes": queues.get_account,
    "SetAccountAttributes": queues.set_account,
    "SendMessage": messages.send_message,
    "ReceiveMessage": messages.receive_message,
    "PeekMessage": messages.peek_message,
    "DeleteMessage": messages.delete_message,
    "BatchDeleteMessage": messages.delete_messages,
    "ChangeMessageVisibility": messages.change_visibility,
}


class SmqFrontEnd:
    """Speaks SMQ over one service; without a verifier everybody is the default account.

    Every answer is counted in `answers`, by its operation (`other` for what is none).
    """

    def __init__(
        self,
        service: Service,
        *,
        verifier: SmqVerifier | None,
        default_account: str = DEFAULT_ACCOUNT,
        region: str = DEFAULT_REGION,
        scheme: str = "http",
        answers: AnswerCounts | None = None,
    ) -> None:
        self._service = service
        self._verifier = verifier
        self._default_account = default_account
        self._region = region  # SMQ's requests name none
        self._scheme = scheme
        self._place = CallPlace(service, QueueUrls(scheme=scheme), BATCH_MAX)
        self._answers = AnswerCounts() if answers is None else answers
        self._request_ids = request_ids()

    async def handle(self, request: Request) -> Response:
        """The answer to a request. Awaiting it raises nothing but CancelledError."""
        request_id = next(self._request_ids)
        operation = OTHER
        call: SmqCall | None = None
        try:
            account, key_id = self._caller(request)
            if len(request.body) > LARGE_BYTES:
                await in_thread(check_digest, request)
            else:
                check_digest(request)
            found = route(request)
            operation = found.operation
            if operation == "ReceiveMessage" and not _shows_a_client(request.headers):
                raise SmqRefused("AccessDenied", _RECEIVE_REFUSED, 403)
            call = SmqCall(self._place, request, found, account, key_id, self._region)
            response = answer(await _RUN[operation](call), request_id)
            response.undelivered, response.delivered = call.undelivered, call.delivered
        except asyncio.CancelledError:
            _give_back(call)
            raise
        except VeilError as error:
            if isinstance(error, StoreError):
                _log.error("%s: the store failed: %s", operation, error)
            if isinstance(error, AnswersTooLarge):
                _give_back(call)
            response = refuse(worded(error), request_id, self._host_id(request))
        except Exception:
            # The client sees no more than the request id.
            _log.exception("request %s (%s) failed", request_id, operation)
            _give_back(call)
            response = refuse(INTERNAL, request_id, self._host_id(request))
        self._answers[LABEL + operation, response.status // 100] += 1
        return response

    def _caller(self, request: Request) -> tuple[str, str]:
        """Account and key id."""
        if self._verifier is None:
            return self._default_account, claimed_key_id(request)[:KEY_ID_CHARS_MAX]
        key = self._verifier.verify(request, self._service.clock.wall_ms())
        return key.account, key.key_id

    def _host_id(self, request: Request) -> str:
        return f"{self._scheme}://{request.headers.get('host') or 'localhost'}"


def _give_back(call: SmqCall | None) -> None:
    """What was received for an answer that is not given must not stay hidden."""
    if call is not None and call.undelivered is not None:
        call.undelivered()


def _shows_a_client(headers: Mapping[str, str]) -> bool:
    # The one operation that is both a GET and a change. A browser sends neither header for a page without asking first;
    # for http://user:password@host it sends Basic by itself.
    return "x-mns-version" in headers or headers.get("authorization", "").startswith("MNS")
