"""The command `veil`."""
