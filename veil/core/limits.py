"""The numbers of the contract: SQS's limits, in one place."""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1_000

VISIBILITY_DEFAULT_S: Final = 30
VISIBILITY_MAX_S: Final = 43_200  # also the longest a lease may live, counted from its receive

BODY_BYTES_MAX: Final = 1_048_576
BATCH_BYTES_MAX: Final = 1_048_576  # whatever a queue's own maximum is
BATCH_ENTRIES_MAX: Final = 10
ATTRIBUTES_MAX: Final = 10
ATTRIBUTE_NAME_MAX: Final = 256
# SQS names no limit; this is the longest trace header that AWS documents for any of its services (Lambda).
TRACE_HEADER_BYTES_MAX: Final = 8_192

RECEIVE_MAX: Final = 10
# Of bodies, where more messages than that may be asked for: as much as so many of the largest have. An answer must fit into
# memory, and one look at the store must be short.
RECEIVE_BYTES_MAX: Final = RECEIVE_MAX * BODY_BYTES_MAX
WAIT_MAX_S: Final = 20
DELAY_MAX_S: Final = 900
# What a queue can do beyond SQS, for the clients of protocols that ask for more: SQS's own are refused it.
WAIT_LONGEST_S: Final = 30
DELAY_LONGEST_S: Final = 604_800
RETENTION_DEFAULT_S: Final = 345_600
RETENTION_MIN_S: Final = 60
RETENTION_MAX_S: Final = 1_209_600
MESSAGE_SIZE_MIN: Final = 1_024

IN_FLIGHT_MAX: Final = 120_000
RECEIVES_MAX_MAX: Final = 1_000  # the largest maxReceiveCount of a redrive policy
ALLOWED_SOURCES_MAX: Final = 10

DEDUPLICATION_MS: Final = 5 * 60 * SECOND_MS
ATTEMPT_MS: Final = 5 * 60 * SECOND_MS
IDENTIFIER_MAX: Final = 128
REPEATED_SEND_MS: Final = 5 * 60 * SECOND_MS  # how long a send that is sent again is known
REPEATED_MESSAGES_MAX: Final = 32_768  # and for how many of the latest messages, over all queues

TAGS_MAX: Final = 50
TAG_KEY_MAX: Final = 128
TAG_VALUE_MAX: Final = 256

PAGE_MAX: Final = 1_000
REST_AFTER_DELETE_MS: Final = 60 * SECOND_MS
REST_AFTER_PURGE_MS: Final = 60 * SECOND_MS

MOVE_RATE_MAX: Final = 500  # messages a second
MOVE_TASKS_LISTED_MAX: Final = 10
