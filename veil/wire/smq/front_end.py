"""The SMQ front end: a request goes in, its answer comes out, and nothing else ever does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from veil.core.errors import VeilError
from veil.service.service import Service
from veil.wire.call import QueueUrls
from veil.wire.exchange import AnswerCounts, Request, Response
from veil.wire.front_end import DEFAULT_ACCOUNT, DEFAULT_REGION, KEY_ID_CHARS_MAX, OTHER, FrontEnd
from veil.wire.large import LARGE_BYTES, in_thread
from veil.wire.smq import messages, queues
from veil.wire.smq.call import BATCH_MAX, LABEL, SmqCall, SmqVerifier, check_digest, claimed_key_id, route
from veil.wire.smq.codes import INTERNAL, SmqRefused, worded
from veil.wire.smq.xml import refuse, with_id

# A receive hides messages, and nothing shows that no web page had a browser ask for it.
_RECEIVE_REFUSED: Final = (
    "A receive without an Authorization or x-mns-version header is refused, because any web page could make a "
    "browser send it."
)

_RUN: Final[Mapping[str, Callable[[SmqCall], Awaitable[Response]]]] = {
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


class SmqFrontEnd(FrontEnd):
    """Speaks SMQ over one service; without a verifier everybody is the default account."""

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
        super().__init__(answers)
        self._service = service
        self._verifier = verifier
        self._default_account = default_account
        self._region = region  # SMQ's requests name none
        self._place = (service, QueueUrls(scheme=scheme), BATCH_MAX)

    def handle(self, request: Request) -> Awaitable[Response]:
        """The answer to a request. Awaiting it raises nothing but CancelledError."""
        return self._answer(SmqCall(*self._place, request, OTHER, LABEL + OTHER), self._run, _refuse)

    async def _run(self, call: SmqCall, request_id: str) -> Response:
        request = call.request
        call.region = self._region
        if self._verifier is None:
            call.account, call.key_id = self._default_account, claimed_key_id(request)[:KEY_ID_CHARS_MAX]
        else:
            key = self._verifier.verify(request, self._service.clock.wall_ms())
            call.account, call.key_id = key.account, key.key_id
        if len(request.body) > LARGE_BYTES:
            await in_thread(check_digest, request)
        else:
            check_digest(request)
        call.set_route(route(request))
        operation = call.route.operation
        if operation == "ReceiveMessage" and not _shows_a_client(request.headers):
            raise SmqRefused("AccessDenied", _RECEIVE_REFUSED, 403)
        return with_id(await _RUN[operation](call), request_id)


def _refuse(call: SmqCall, error: VeilError | None, request_id: str) -> Response:
    host_id = f"{call.urls.scheme}://{call.request.headers.get('host') or 'localhost'}"
    return refuse(INTERNAL if error is None else worded(error), request_id, host_id)


def _shows_a_client(headers: Mapping[str, str]) -> bool:
    # The one operation that is both a GET and a change. A browser sends neither header for a page without asking first;
    # for http://user:password@host it sends Basic by itself.
    return "x-mns-version" in headers or headers.get("authorization", "").startswith("MNS")
