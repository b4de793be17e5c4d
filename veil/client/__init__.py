"""The SQS client of Veil: signing, credentials, connections, retries; for the consumer, the pipeline and the command."""
