"""How a consumer is watched: logs, metrics, traces, health."""
