"""Invent histories: steps that aim at the instants and receipts where stores go wrong."""

from __future__ import annotations

import random
import uuid
from collections import deque
from typing import Any

from tests.stores.model_steps import QUEUES, LockStep, Step, receipt_label
from veil.core.errors import VeilError
from veil.core.limits import DEDUPLICATION_MS

_WEIGHTS = {
    "send": 18,
    "receive": 32,
    "delete": 10,
    "extend": 10,
    "rotate": 5,
    "advance": 15,
    "undo": 3,
    "receive_hold": 12,
    "extend_holds": 4,
    "delete_holds": 3,
    "open_stream": 0.5,
    "redrive": 2,
    "settle": 2,
    "edit": 2,
    "step_move": 3,
    "start_move": 2,
    "cancel_move": 0.5,
    "look": 1,
    "foreign": 0.5,
    "create_queue": 1.5,
    "delete_queue": 0.4,
    "purge": 0.5,
    "reopen": 0.5,
}


class Author:
    """Writes the next step, knowing what the earlier ones came to."""

    def __init__(self, seed: int | str, run: LockStep) -> None:
        self._random = random.Random(seed)
        self._run = run
        self._number = 0
        self._labels: dict[str, deque[str]] = {name: deque(maxlen=30) for name in QUEUES}
        self._tasks: deque[str] = deque(maxlen=3)
        self._focus = "std"
        self._batch = 0
        self._instants: deque[int] = deque(maxlen=20)  # ends of deduplication and attempts

    def next(self) -> Step:
        chance = self._random
        if chance.random() < 0.04:
            self._focus = chance.choice(list(QUEUES))
        [op] = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        step: Step = getattr(self, "_" + op, dict)()
        step = {"op": op, "queue": self._any_queue(), **step, "settle": chance.random() < 0.5}
        if chance.random() < 0.01:
            step["old"] = True  # with a queue that was deleted since, if there is one
        return step

    def learn(self, step: Step, answer: Any) -> None:
        """Take up what can be used later."""
        if isinstance(answer, VeilError):
            return
        if step["op"] == "receive":
            self._labels[step["queue"]].extend(receipt_label(step["queue"], message) for message in answer)
            if step["attempt"] is not None:
                self._instants.append(self._run.clock.now_ms() + DEDUPLICATION_MS)
        if step["op"] == "rotate":
            shown = [label for label, _ in step["extensions"] if self._run.reference.knows(step, label)]
            for label, rotated in zip(shown, answer, strict=True):
                if not isinstance(rotated, VeilError):
                    self._labels[step["queue"]].append(f"{label.partition('+')[0]}+{rotated[1]}")
        if step["op"] == "receive_hold":
            given = [receipt_label(step["queue"], message) for message in answer.messages]
            self._labels[step["queue"]].extend(given[-3:])
        if step["op"] == "delete" and self._random.random() < 0.8:  # spend most steps on what is still there
            gone = {label.split("/")[1] for label in step["receipts"]}
            labels = self._labels[step["queue"]]
            kept = [label for label in labels if label.split("/")[1] not in gone]
            labels.clear()
            labels.extend(kept)
        if step["op"] == "send":
            waiting = [each["body"] for each in step["messages"] if each["delay"]]
            self._labels[step["queue"]].extend(f"{step['queue']}/{body}/0" for body in waiting)
        if step["op"] == "send" and step["queue"].endswith(".fifo"):
            self._instants.append(self._run.clock.now_ms() + DEDUPLICATION_MS)

    def _any_queue(self) -> str:
        """Mostly the same one for a while: what goes wrong takes several steps on one queue."""
        return self._focus if self._random.random() < 0.7 else self._random.choice(list(QUEUES))

    # ---- steps

    def _send(self) -> Step:
        name = self._any_queue()
        count = self._random.choice([1, 1, 2, 3, 5])
        if name == "fair" and self._random.random() < 0.3:
            count = 35
        return {"queue": name, "messages": [self._message(name, count) for _ in range(count)]}

    def _message(self, name: str, count: int) -> dict[str, Any]:
        chance = self._random
        self._number += 1
        fifo = name.endswith(".fifo")
        group = chance.choice("ABCD") if fifo else None
        if name == "fair":
            group = "loud" if count > 5 else chance.choice(["loud", "quiet", "shy", None])
        return {
            "id": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            "body": f"m{self._number}",
            "delay": None if fifo else chance.choice([None, None, None, 0, 1, 5, 70]),
            "group": group,
            "deduplication": f"d{chance.randrange(60)}" if fifo else None,
            "priority": chance.choice([8, 8, 8, 1, 5, 16]) if not fifo else 8,
        }

    def _receive(self) -> Step:
        chance = self._random
        name = self._any_queue()
        count = 40 if name == "fair" and chance.random() < 0.4 else chance.choice([1, 1, 2, 3, 10])
        return {
            "queue": name,
            "count": count,
            "visibility": chance.choice([None, None, None, 0, 1, 2, 2, 30, 43_200]),
            "attempt": chance.choice([None, None, None, "t1", "t2"]),
        }

    def _receive_hold(self) -> Step:
        """Names that come again, mostly soon; batches that rise, so that acknowledged ones are asked for too."""
        chance = self._random
        self._batch += chance.random() < 0.1
        return {
            "stream": chance.choice(["s1", "s1", "s2"]),
            "batch": max(0, self._batch - chance.choice([0, 0, 0, 1, 2])),
            "part": chance.choice([0, 0, 1]),
            "count": chance.choice([1, 2, 3, 10]),
            "visibility": chance.choice([1, 2, 5, 30, 43_200]),
        }

    def _extend_holds(self) -> Step:
        chance = self._random
        visibility_s = chance.choice([1, 2, 5, 30, 43_195, 43_200])
        return {
            "stream": chance.choice(["s1", "s2", "s3"]),
            "owner": self._owner(),
            "visibility": visibility_s,
        }

    def _delete_holds(self) -> Step:
        chance = self._random
        batch = max(0, self._batch - chance.choice([0, 1, 2, 3]))
        return {"stream": chance.choice(["s1", "s2", "s3"]), "owner": self._owner(), "batch": batch}

    def _open_stream(self) -> Step:
        return {"stream": self._random.choice(["s1", "s2"]), "owner": self._owner()}

    def _owner(self) -> str:
        return self._random.choice(["me", "me", "me", "me", "you"])

    def _redrive(self) -> Step:
        chance = self._random
        name = chance.choice(["dead", "dead", "dead.fifo", self._any_queue()])
        known = [label.split("/")[1] for label in self._labels[name]] or ["none"]
        latest = [f"m{number}" for number in range(max(1, self._number - 20), self._number)]
        return {
            "queue": name,
            "bodies": chance.choices(known + latest, k=chance.choice([1, 2, 10])),
            "destination": chance.choice([None, None, "std", "turns.fifo", "nowhere"]),
        }

    def _receipts(self) -> tuple[str, list[str]]:
        """Mostly the latest receipts of a queue, at times long stale ones."""
        chance = self._random
        name = self._any_queue()
        labels = list(self._labels[name])
        if chance.random() < 0.6:
            labels = labels[-5:]
        count = min(len(labels), chance.choice([1, 1, 2, 3, 10]))
        return name, chance.sample(labels, count)

    def _delete(self) -> Step:
        name, labels = self._receipts()
        strict = self._random.random() < 0.3
        receipts = labels + labels[: self._random.choice([0, 0, 0, 1])]
        return {"queue": name, "receipts": receipts, "strict": strict}

    def _undo(self) -> Step:
        name, labels = self._receipts()
        return {"queue": name, "receipts": labels}

    def _extend(self) -> Step:
        name, labels = self._receipts()
        lengths = [0, 0, 1, 2, 5, 10, 60, 43_195, 43_200]
        return {"queue": name, "extensions": [[label, self._random.choice(lengths)] for label in labels]}

    def _rotate(self) -> Step:
        # Known to both sides, since what comes of it is learned by place.
        name, labels = self._receipts()
        known = [label for label in labels if label in self._run.reference.receipts]
        return {
            "queue": name,
            "extensions": [[label, self._random.choice([0, 1, 5, 43_200])] for label in known],
        }

    def _foreign(self) -> Step:
        labels = [label for name in QUEUES for label in self._labels[name]] or ["none/none/0"]
        return {"receipt": self._random.choice(labels)}

    def _advance(self) -> Step:
        chance = self._random
        now_ms = self._run.clock.now_ms()
        kind = chance.random()
        if kind < 0.6:  # exactly onto what is due next, or a millisecond beside it
            due_ms = self._run.reference.store.next_due_ms()
            target_ms = (due_ms or now_ms) + chance.choice([-1, 0, 0, 0, 1])
        elif kind < 0.63:
            later = [instant for instant in self._instants if instant > now_ms]
            target_ms = (min(later) if later else now_ms) + chance.choice([-1, 0, 1])
        elif kind < 0.99:
            target_ms = now_ms + chance.choice([1, 500, 1_000, 2_000, 3_000, 5_000, 10_000])
        else:
            target_ms = now_ms + chance.choice([30_000, 60_000, 120_000])
        return {"ms": max(0, target_ms - now_ms)}

    def _edit(self) -> Step:
        chance = self._random
        changes: dict[str, Any] = {
            "visibility_s": chance.choice([0, 1, 5, 30]),
            "delay_s": chance.choice([0, 0, 1, 4]),
            "retention_s": chance.choice([60, 90, 300, 600]),
            "deduplication_scope": chance.choice(["queue", "messageGroup"]),
        }
        name = self._any_queue()
        if name.startswith(("std", "turns")):
            dead = "dead.fifo" if name.endswith(".fifo") else "dead"
            changes["redrive"] = chance.choice([None, [dead, 1], [dead, 3], ["nowhere", 1], [name, 1]])
        setting = chance.choice(list(changes))
        return {"queue": name, "changes": {setting: changes[setting]}}

    def _create_queue(self) -> Step:
        return {"rest_ms": self._random.choice([0, 1_000, 60_000])}

    def _purge(self) -> Step:
        return {"rest_ms": self._random.choice([0, 60_000])}

    def _look(self) -> Step:
        return {"prefix": self._random.choice(["", "d", "turns"]), "limit": self._random.choice([1, 3, 20])}

    def _start_move(self) -> Step:
        self._number += 1
        task = f"task-{self._number}"
        self._tasks.append(task)
        source = self._random.choice(["dead", "dead.fifo"])
        others = ["turns.fifo", "lanes.fifo"] if source.endswith(".fifo") else ["std", "short", "fair"]
        return {"task": task, "queue": source, "destination": self._random.choice([None, None, *others])}

    def _step_move(self) -> Step:
        return {"task": self._task(), "count": self._random.choice([1, 2, 10])}

    def _cancel_move(self) -> Step:
        return {"task": self._task()}

    def _task(self) -> str:
        return self._random.choice(list(self._tasks) or ["nobody"])
