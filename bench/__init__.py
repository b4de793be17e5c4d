"""Benchmarks: what Veil costs, and how that compares; run them with `python -m bench.NAME`."""
