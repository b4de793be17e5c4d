"""The web pages under /console: show queues, messages and leases, and change them after showing the change."""
