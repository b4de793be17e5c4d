"""What a consumer writes on a message that it gives up: the names of the attributes that tell why.

The consumer writes them, the console and the pipeline read them.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "veil."
ERROR_TYPE: Final = "veil.error_type"
REASON: Final = "veil.reason"
SOURCE_QUEUE: Final = "veil.source_queue"
MESSAGE_ID: Final = "veil.message_id"
RECEIVE_COUNT: Final = "veil.receive_count"
HANDLER: Final = "veil.handler"
TRACEBACK: Final = "veil.traceback"
FIRST_RECEIVED_AT: Final = "veil.first_received_at"
LAST_RECEIVED_AT: Final = "veil.last_received_at"
