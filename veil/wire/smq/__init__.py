"""Alibaba SMQ's protocol (formerly MNS) on the same queues: XML over HTTP, its own signature, its own error codes."""
