"""The server with a meter on its event loop: how long each request kept it, in CPU time.

`python -m tests.faults.metered_server FILE serve …` runs the ordinary command line and leaves its table in FILE when it is
stopped. A turn is what the loop does between two looks at the sockets; a request's stretch is its share of one turn. What
it does in a thread is no stretch, but a call into C that keeps the interpreter's lock there keeps the loop as well: the
longest such call is noted beside it.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import uvloop

from veil.server.application import Application
from veil.server.http_connection import HttpConnection
from veil.wire.exchange import Request, Response
from veil.wire.front_end import OTHER, action_of
from veil.wire.smq.call import route
from veil.wire.smq.codes import SmqRefused
from veil.wire.smq.front_end import SmqFrontEnd

# Calls that let go of the interpreter's lock while they work.
_RELEASE = frozenset(
    ("openssl_sha256", "openssl_md5", "blake2b", "update", "acquire", "fsync", "fdatasync", "read", "write")
)
_SAMPLE_BYTES = 300


class Work:
    """One request, or what is nobody's: its longest stretch, and its longest call under the lock in a thread."""

    def __init__(self, label: str, sample: str = "") -> None:
        self.label, self.sample = label, sample
        self.loop_s = self.thread_s = 0.0


_NOBODY = Work("(background)")
_work: ContextVar[Work] = ContextVar("work", default=_NOBODY)


class Meter:
    """The longest of each label."""

    def __init__(self) -> None:
        self.turn: dict[Work, float] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.is_started = False

    def end_turn(self) -> None:
        """Take the shares of the turn that is over."""
        for work, took_s in self.turn.items():
            self.note(work, "loop", took_s)
        self.turn.clear()

    def note(self, work: Work, where: str, took_s: float) -> None:
        """One stretch; the longest of a label is kept with its request."""
        row = self.rows.setdefault(work.label, {"requests": 0, "loop_s": 0.0, "thread_s": 0.0})
        if took_s > row[f"{where}_s"]:
            row[f"{where}_s"], row[f"{where}_sample"] = took_s, work.sample


meter = Meter()


class _MeteredLoop(uvloop.Loop):
    def call_soon(self, callback: Any, *given: Any, context: Any = None) -> Any:
        return super().call_soon(_metered(callback), *given, context=context)

    def call_soon_threadsafe(self, callback: Any, *given: Any, context: Any = None) -> Any:
        return super().call_soon_threadsafe(_metered(callback), *given, context=context)

    def call_later(self, delay: float, callback: Any, *given: Any, context: Any = None) -> Any:
        return super().call_later(delay, _metered(callback), *given, context=context)

    def call_at(self, when: float, callback: Any, *given: Any, context: Any = None) -> Any:
        return super().call_at(when, _metered(callback), *given, context=context)

    def mark_turn(self) -> None:
        """What is called now runs in the next turn: that is when this one is over."""
        super().call_soon(meter.end_turn)


def _metered(callback: Callable[..., Any]) -> Callable[..., Any]:
    def metered(*given: Any) -> Any:
        began_s = time.thread_time()
        try:
            return callback(*given)
        finally:
            took_s = time.thread_time() - began_s
            if not meter.turn:
                asyncio.get_running_loop().mark_turn()  # type: ignore[attr-defined]
            work = _work.get()
            meter.turn[work] = meter.turn.get(work, 0.0) + took_s

    return metered


def _metered_method(method: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *given: _metered(method)(self, *given)


def _metered_submit(submit: Callable[..., Any]) -> Callable[..., Any]:
    def metered(self: Any, function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
        work = _work.get()
        if self._thread_name_prefix != "veil-large":  # files, imports, the disk: not what a request brings
            return submit(self, function, *given, **named)

        def run() -> Any:
            longest = _LongestCall()
            sys.setprofile(longest)
            try:
                return function(*given, **named)
            finally:
                sys.setprofile(None)
                meter.note(work, "thread", longest.took_s)

        return submit(self, run)

    return metered


class _LongestCall:
    """A profiler that knows nothing but the longest time from one step of Python to the next, in calls that keep the lock."""

    def __init__(self) -> None:
        self.took_s, self._last_s = 0.0, time.thread_time()

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        now_s = time.thread_time()
        if event not in ("c_return", "c_exception") or getattr(argument, "__name__", "") not in _RELEASE:
            self.took_s = max(self.took_s, now_s - self._last_s)
        self._last_s = time.thread_time()


def _metered_handle(label: Callable[[Request], str], handle: Callable[..., Any]) -> Callable[..., Any]:
    async def metered(self: Any, request: Request) -> Response:
        body = bytes(request.body[:_SAMPLE_BYTES])
        headers = {name: value[:_SAMPLE_BYTES] for name, value in request.headers.items()}
        sample = f"{request.method} {request.path[:_SAMPLE_BYTES]}?{request.query[:_SAMPLE_BYTES]} {headers} "
        work = Work(label(request), sample + f"{len(request.body)} bytes: {body!r}")
        if not meter.is_started:  # what the start took is no request's doing
            meter.is_started = True
            meter.rows.clear()
        _work.set(work)
        meter.note(work, "loop", 0.0)
        meter.rows[work.label]["requests"] += 1
        answer: Response = await handle(self, request)
        return answer

    return metered


def _sqs_label(request: Request) -> str:
    if request.path.startswith("/console"):
        parts = request.path.split("/")[2:7]
        # Region and name of a queue, and the key of a message, are no page of their own.
        page = "/".join(
            "*" if (place in (1, 2) and len(parts) > 2) or part.isdigit() else part
            for place, part in enumerate(parts)
        )
        return f"console {request.method} /{page}"[:60]
    if request.path in ("/metrics", "/healthz", "/readyz"):
        return request.path
    target = request.headers.get("x-amz-target", "")
    if target.startswith("Veil."):
        return target[:40]
    return ("json " if target else "query ") + action_of(request)


def _smq_label(request: Request) -> str:
    try:
        return f"smq {route(request).operation}"
    except SmqRefused:
        return f"smq {OTHER}"


def install(report: Path) -> None:
    """Put the meter in place; its table goes to the file when the process ends."""
    uvloop.new_event_loop = _MeteredLoop
    # These the loop calls by itself.
    for name in ("connection_made", "data_received", "eof_received", "connection_lost", "resume_writing"):
        setattr(HttpConnection, name, _metered_method(getattr(HttpConnection, name)))
    ThreadPoolExecutor.submit = _metered_submit(ThreadPoolExecutor.submit)  # type: ignore[method-assign]
    Application.handle = _metered_handle(_sqs_label, Application.handle)  # type: ignore[method-assign]
    SmqFrontEnd.handle = _metered_handle(_smq_label, SmqFrontEnd.handle)  # type: ignore[method-assign]
    atexit.register(lambda: report.write_text(json.dumps(meter.rows)))


if __name__ == "__main__":
    install(Path(sys.argv.pop(1)))
    from veil.cli.main import main

    main()
