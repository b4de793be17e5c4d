"""Draws the timeline of `docs/renewal.md` from what the keeper really does, on the simulated queue.

    python -m bench.renewal_timeline > docs/renewal.svg

One message, received with a window of 30 s; its handler takes 120 s; the service throttles every call from 44 s to 54 s.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.consumer.simulated_queue import Extension, SimulatedQueue, run_virtual
from veil.client.api import ApiError, Failure
from veil.consumer.renewal import Adaptive, Buffered, Heartbeat, NoRenewal, RenewalPolicy
from veil.consumer.renewal.keeper import LeaseKeeper

VISIBILITY_S, HANDLER_S = 30, 120
THROTTLED_S = (44, 54)
_LEFT, _TOP, _ROW, _SCALE, _END_S = 170, 46, 44, 4.4, 180


@dataclass(frozen=True, slots=True)
class Line:
    """One policy's life of the message."""

    name: str
    tries: list[Extension]
    lost_at_s: float | None


def line(name: str, policy: RenewalPolicy) -> Line:
    """Play it in virtual time."""

    async def whole() -> Line:
        loop = asyncio.get_running_loop()

        async def trouble(now_s: float) -> None:
            if THROTTLED_S[0] <= now_s <= THROTTLED_S[1]:
                raise ApiError(Failure.THROTTLED, "RequestThrottled", "slow down")

        queue: Any = SimulatedQueue(loop.time, trouble=trouble)
        keeper = LeaseKeeper(lambda: queue, policy, monotonic=loop.time, random=Random(3))
        await keeper.start()
        lease = queue.lease(1, VISIBILITY_S)
        lost: list[float] = []
        lease.when_lost(lambda: lost.append(loop.time()))
        keeper.hold(lease)
        await asyncio.sleep(HANDLER_S)
        await keeper.let_go(lease)
        await keeper.close()
        return Line(name, queue.extensions(lease), lost[0] if lost else None)

    return run_virtual(whole())


def lines() -> list[Line]:
    """All policies, and ours once more when it knows its handler."""
    learned = Adaptive()
    for _ in range(50):
        learned.observed(HANDLER_S)
    return [
        line("NoRenewal", NoRenewal()),
        line("Buffered", Buffered()),
        line("Heartbeat", Heartbeat()),
        line("Adaptive", Adaptive()),
        line("Adaptive, learned", learned),
    ]


def svg() -> str:
    """The drawing."""
    rows = lines()
    width, height = _LEFT + _END_S * _SCALE + 30, _TOP + _ROW * len(rows) + 66
    bottom = _TOP + _ROW * len(rows)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="13">',
        "<title>When each policy renews one message, and what it does about a throttled service</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="#ffffff"/>',
        _box(THROTTLED_S[0], _TOP - 8, THROTTLED_S[1] - THROTTLED_S[0], bottom - _TOP + 8, "#fdecea"),
        _text(_x(sum(THROTTLED_S) / 2), _TOP - 14, "throttled", "#b3261e", "middle"),
        _text(_x(HANDLER_S), _TOP - 14, "the handler ends", "#333333", "middle"),
        _stroke(_x(HANDLER_S), _TOP - 8, bottom, "#333333", 1.5),
    ]
    for second in range(0, _END_S + 1, 30):
        out += [
            _stroke(_x(second), bottom, bottom + 5, "#666666", 1),
            _text(_x(second), bottom + 20, f"{second} s", "#666666", "middle"),
        ]
    for at, row in enumerate(rows):
        out += _row(row, _TOP + _ROW * at)
    y = bottom + 48
    out += [
        _box(0, y - 11, 5, 12, "#cfe3f7"), _text(_x(6.5), y, "hidden: the open window", "#333333"),
        _stroke(_x(50), y - 13, y + 3, "#1b6e3c", 3), _text(_x(52), y, "renewed", "#333333"),
        _stroke(_x(72), y - 11, y + 1, "#d93025", 1.5), _text(_x(74), y, "tried, throttled", "#333333"),
        _text(_x(103), y + 1, "✕", "#b3261e", "middle", 18), _text(_x(106), y, "lost: the handler is told", "#333333"),
    ]  # fmt: skip
    return "\n".join([*out, "</svg>", ""])


def _row(row: Line, top: float) -> list[str]:
    out = [_text(_LEFT - 12, top + 20, row.name, "#111111", "end")]
    granted = [each for each in row.tries if each.failure is None]
    expiry_s = granted[-1].expiry_s if granted else VISIBILITY_S
    out.append(_box(0, top + 6, min(expiry_s, _END_S), 18, "#cfe3f7"))
    if expiry_s > HANDLER_S:
        out.append(
            _text(
                _x(min(expiry_s, _END_S)) - 4,
                top + 36,
                f"hidden to {expiry_s:.0f} s if it crashes",
                "#666666",
                "end",
                11,
            )
        )
    for each in row.tries:
        if each.failure is None:
            out.append(_stroke(_x(each.at_s), top + 3, top + 27, "#1b6e3c", 3))
        else:
            out.append(_stroke(_x(each.at_s), top + 8, top + 22, "#d93025", 1.5))
    if row.lost_at_s is not None:
        out.append(_text(_x(row.lost_at_s), top + 21, "✕", "#b3261e", "middle", 18))
    return out


def _x(second: float) -> float:
    return _LEFT + second * _SCALE


def _box(at_s: float, y: float, length_s: float, height: float, colour: str) -> str:
    return f'<rect x="{_x(at_s):.1f}" y="{y:g}" width="{length_s * _SCALE:.1f}" height="{height:g}" fill="{colour}"/>'


def _stroke(x: float, top: float, bottom: float, colour: str, width: float) -> str:
    return f'<line x1="{x:.1f}" y1="{top:g}" x2="{x:.1f}" y2="{bottom:g}" stroke="{colour}" stroke-width="{width:g}"/>'


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:g}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{text}</text>'
    )


if __name__ == "__main__":
    print(svg(), end="")
