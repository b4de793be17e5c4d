"""The audit log: who changed what, when and from where, the newest first."""

from __future__ import annotations

from typing import Final

from veil.console.audit import ASKED
from veil.console.visit import Visit
from veil.console.web import page
from veil.wire.exchange import Response
from veil.words import wall_ms

PAGE_ROWS: Final = 50


@page("/audit")
async def audit_page(visit: Visit) -> Response:
    search = visit.query.text("search")[:100]
    before = visit.query.number("before", -1, 0, 1 << 62)
    found = await visit.console.audit.page(
        visit.identity.account, before=None if before < 0 else before, limit=PAGE_ROWS, search=search
    )
    return await visit.page(
        "audit.html",
        title="Audit",
        rows=[(each, wall_ms(each.at)) for each in found.entries],
        search=search,
        older=found.older and visit.query_with(before=found.older),
        is_first=before < 0,
        asked=ASKED,
    )
