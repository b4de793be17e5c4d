"""Log lines on stderr, for people or for machines; never a body, never a secret."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

# A line is one event: what a client sent may not begin a second one, nor speak to the terminal.
_ACTIVE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def configure_logging(level: str, log_format: str) -> None:
    """Send everything that is logged under `veil`, and warnings of others, to stderr in that format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("veil").setLevel(level.upper())


def _at(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


class TextLines(logging.Formatter):
    """Time, level, part and text; a stack trace follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        text = _ACTIVE.sub(lambda found: repr(found[0])[1:-1], record.getMessage())
        message_id = getattr(record, "facts", {}).get("message_id")
        if message_id is not None and message_id not in text:
            text = f"{text}; message {message_id}"
        line = f"{_at(record)} {record.levelname.lower():<8} {record.name}: {text}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """One object a line; a stack trace is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "part": record.name,
            "text": record.getMessage(),
        }
        fields |= getattr(record, "facts", {})
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)
