"""The operations on queues and messages, on a store and a clock."""
