"""`veil pipeline lifecycles`: from the journal's events to a row for every lease and every message, and sums of them."""
