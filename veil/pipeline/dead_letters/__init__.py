"""Dead letters: what they are and why, found without receiving them, and the way back for those that are chosen."""
