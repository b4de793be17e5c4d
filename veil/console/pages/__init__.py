"""The pages by subject; each file puts its routes into the table when it is imported."""

from typing import Final

# Imported with the first visit to the console.
MODULES: Final = (
    "login",
    "overview",
    "queues",
    "queue_new",
    "queue_messages",
    "queue_send",
    "queue_settings",
    "queue_export",
    "message",
    "dead_letters",
    "dead_letter_redrive",
    "timeouts",
    "consumers",
    "audit",
)
