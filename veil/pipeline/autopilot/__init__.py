"""`veil autopilot`: timeouts that keep themselves right, where the owner of a queue allows it."""
