"""The store in memory: the contract of `stores.store` written to be read; other stores are compared with it.

Everything is a linear scan over plain dicts. Each operation settles first, so what it sees has already
happened, and afterwards tells its owner what has become receivable by comparing what was with what is.
Where the contract leaves room, these are the readings, and they hold for every store:

* Every operation settles first, not only those that look: to a send, a group whose last message has expired
  is a new group; a longer retention does not bring back what the shorter one had ended, nor does a late
  extension.
* A FIFO group exists while it has messages. Its turn is set when it appears and each time it gives a
  message; a receive that only dead-letters from it, or that repeats an attempt, takes no turn.
* Noisy groups are determined once per receive, before its first message.
* One receive never takes more than the limit of messages in flight leaves room for.
* Dead-lettering keeps the delivery number, so that the fencing token goes on rising; the old receipts are
  void since they name the old queue.
* An attempt is remembered for five minutes from its latest repetition. "Changed" means that a message's
  holder or deadline is another one now. Repeating it sets `received_at_ms` (the twelve hours count from the
  restarted window), counts as no receive, and ignores `count`. With visibility 0 there is no window to
  restart: that is an ordinary receive.
* A queue that names itself as its dead letters has none.
* A change of a FIFO queue's delay reaches the messages that are still waiting; on a standard queue it does
  not.
* A hold's receive is a receive: it takes turns, and dead-letters. What is given again takes no turn.
* A move task moves what is visible, held back by its group or not. What it moves gets the delay of its new
  queue and is never taken for a duplicate: on a FIFO queue its new id is its deduplication id too.
  `to_move` counts the visible messages. The step that finds fewer than it might move completes the task; a
  source that is gone has nothing left to move.
"""

from veil.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
