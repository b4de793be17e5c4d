"""`veil pipeline timeouts`: from the sums to the timeout that each queue should have, and how sure that is."""
