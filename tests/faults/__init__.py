"""Black-box rigs: a real server in a process of its own, real faults, and a checker that reads what the clients saw."""
