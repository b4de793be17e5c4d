"""Queues as the pipeline reaches them: an SQS client that blocks, made for many messages at a time."""
