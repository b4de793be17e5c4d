"""A consumer of SQS queues whose handlers keep their lease."""
