"""Veil: a durable message queue built around the visibility timeout."""
