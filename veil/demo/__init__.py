"""The demo: a shop with real work and real crashes, and what its timeouts should have been."""
