"""The data pipeline on Spark: from the journal to the life of each message, and from that to the timeouts queues should have."""

from veil.pipeline.registering import register
from veil.pipeline.source.draining import drain

__all__ = ["drain", "register"]
