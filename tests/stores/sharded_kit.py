"""A store on two servers for tests: queues are spread by name alone, and what moves between servers has arrived when an
operation returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from veil.core.queue import QueueKey
from veil.stores.sharded import ShardedStore
from veil.stores.store import QueueContent


def _then_carry(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def call(self: CarriedAtOnce, *args: Any, **kwargs: Any) -> Any:
        answer = await method(self, *args, **kwargs)
        for number in list(self._by_number):
            await self.carry(number)
        return answer

    return call


class CarriedAtOnce(ShardedStore):
    """No queue is placed with its dead letters, and there is no carrier but those who cause the moves."""

    def _chosen(self, key: QueueKey, content: QueueContent) -> int:
        # By turns: the tests name their queues alike.
        return len(self._placed) % len(self._by_number)

    async def _carry_on(self) -> None:
        pass

    receive = _then_carry(ShardedStore.receive)  # type: ignore[assignment]
    receive_hold = _then_carry(ShardedStore.receive_hold)  # type: ignore[assignment]
    redrive = _then_carry(ShardedStore.redrive)  # type: ignore[assignment]
    step_move = _then_carry(ShardedStore.step_move)  # type: ignore[assignment]
