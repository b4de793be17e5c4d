"""The options of the sink, checked together at the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from veil.pipeline.option_error import OptionError
from veil.pipeline.option_values import OptionValues
from veil.pipeline.queues.patience import PATIENCE_S
from veil.pipeline.queues.queue_place import QueuePlace

FAIL, PATH = "fail", "path"
CALLS_DEFAULT: Final = 8
_CALLS_MAX: Final = 64  # the connections of a client
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,80}")

KNOWN: Final = (
    "queue",
    "queueColumn",
    "endpoint",
    "region",
    "profile",
    "onError",
    "errorPath",
    "keyColumn",
    "deduplicationColumn",
    "maxInFlight",
    "patience",
    "writeId",
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What one query or write was asked for."""

    queue: str | None  # None: each row names its own
    queue_column: str | None
    endpoint: str | None
    region: str | None
    profile: str | None
    error_path: str | None  # None: a row that cannot be sent fails the job
    key_column: str | None
    deduplication_column: str | None
    calls_at_once: int  # of each task
    patience_s: float
    write_id: str | None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> SinkOptions:
        """The options as Spark hands them over; raises OptionError."""
        values = OptionValues(given, KNOWN)
        queue, queue_column = values.text("queue"), values.text("queueColumn")
        if (queue is None) == (queue_column is None):
            raise OptionError(
                "queue",
                queue,
                "the name, URL or ARN of a queue, or else queueColumn, the column that has it: one of the two",
            )
        error_path = values.text("errorPath")
        on_error = values.choice("onError", FAIL if error_path is None else PATH, (FAIL, PATH))
        if (on_error == PATH) != (error_path is not None):
            raise OptionError(
                "errorPath",
                error_path,
                "a directory (path or URI) with onError=path, and none with onError=fail",
            )
        if error_path is not None:
            _check_place(error_path)
        write_id = values.text("writeId")
        if write_id is not None and not _WRITE_ID.fullmatch(write_id):
            raise OptionError("writeId", write_id, "1 to 80 letters, digits, dots, hyphens and underscores")
        return cls(
            queue=queue,
            queue_column=queue_column,
            endpoint=values.text("endpoint"),
            region=values.text("region"),
            profile=values.text("profile"),
            error_path=error_path,
            key_column=values.text("keyColumn"),
            deduplication_column=values.text("deduplicationColumn"),
            calls_at_once=values.whole("maxInFlight", CALLS_DEFAULT, 1, _CALLS_MAX) or CALLS_DEFAULT,
            patience_s=values.number("patience", PATIENCE_S, 0, 3600) or 0.0,
            write_id=write_id,
        )

    @property
    def service(self) -> QueuePlace:
        """The service, for whoever asks for the queue itself later."""
        return QueuePlace(self.queue or "", self.endpoint, self.region, self.profile)


def _check_place(where: str) -> None:
    from veil.journal.place import Place

    try:
        Place.at(where)
    except ValueError as expected:
        raise OptionError("errorPath", where, str(expected)) from None
