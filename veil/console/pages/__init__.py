"""The pages, one file for each; each puts its routes into the table when it is imported."""

from typing import Final

# Imported with the first visit to the console.
MODULES: Final = (
    "login",
    "theme",
    "queues",
    "queue_edit",
    "queue_new",
    "queue_removal",
    "queue_export",
    "queue_messages",
    "queue_in_flight",
    "lease_changes",
    "queue_send",
    "queue_settings",
    "queue_tags",
    "queue_policy",
    "queue_activity",
    "message",
    "find_message",
    "dead_letters",
    "dead_letter_queue",
    "dead_letter_redrive",
    "dead_letter_edit",
    "timeouts",
    "consumers",
    "audit",
)
