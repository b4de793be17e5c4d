"""SMQ's own listener: its front end behind the same rules of access as everything else."""

from __future__ import annotations

from typing import Final

from veil.core.errors import AccessDenied
from veil.server.access import AccessRules
from veil.server.metrics import RequestTallies
from veil.server.settings import Settings
from veil.service.service import Service
from veil.wire.exchange import Request, Response
from veil.wire.sigv4 import AccessKey
from veil.wire.smq.codes import Refusal, worded
from veil.wire.smq.front_end import SmqFrontEnd
from veil.wire.smq.signature import SmqVerifier
from veil.wire.smq.xml import refuse

# In front of an operation, among the actions that are counted: SQS has some of the same name.
LABEL: Final = "Smq."
_ABOUT: Final = b"""This is Veil, a message queue, at the port where it speaks the protocol of Alibaba SMQ (MNS).
Point an SMQ client at this address. Health and metrics are at the server's other port.
"""


class SmqApplication:
    """Answers what comes in at SMQ's port."""

    def __init__(
        self,
        settings: Settings,
        service: Service,
        keys: dict[str, AccessKey],
        access: AccessRules,
        requests: RequestTallies,
    ) -> None:
        self._access = access
        self._scheme = settings.scheme
        self._front_end = SmqFrontEnd(
            service,
            verifier=SmqVerifier(keys) if keys else None,
            default_account=settings.account,
            region=settings.region,
            scheme=settings.scheme,
            count=lambda operation, status: requests.add(LABEL + operation, status),
        )

    async def handle(self, request: Request) -> Response:
        """The answer to one request."""
        refusal = self._access.refusal(request)
        if refusal is not None:
            denied = worded(AccessDenied("call", ""))
            told = Refusal(denied.code, denied.status, refusal.body.decode("ascii", "replace").strip())
            return refuse(told, "none", f"{self._scheme}://{request.headers.get('host', '')}")
        if request.path == "/" and not request.query and "authorization" not in request.headers:
            return Response(200, _ABOUT)
        return await self._front_end.handle(request)
