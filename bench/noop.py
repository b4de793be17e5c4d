"""An empty handler on Veil's own HTTP layer: what no queue on it could ever exceed.

    python -m bench.noop PORT

Whatever is asked, the answer is as long as that to a SendMessage.
"""

from __future__ import annotations

import asyncio
import gc
import sys

import uvloop

from veil.server.http import HttpServer
from veil.wire.exchange import Request, Response

ANSWER = b'{"MD5OfMessageBody":"' + b"0" * 32 + b'","MessageId":"219f8380-5770-4cc2-8c3e-5c715e145f5e"}'
_HEADERS = (("x-amzn-RequestId", "5f1b0d3e-8d7a-5c64-9d6b-0d1f6c1d0a55"),)


async def _handle(request: Request) -> Response:
    return Response(200, ANSWER, "application/x-amz-json-1.0", _HEADERS)


async def _serve(port: int) -> None:
    await HttpServer(_handle).start("127.0.0.1", port)
    gc.freeze()  # as the real server does
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
