"""The web pages under /console: look at queues, messages and leases, and change them with the change shown first."""
