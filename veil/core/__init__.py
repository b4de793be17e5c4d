"""What a queue means, as pure rules: no I/O, no await, no clock of its own."""
