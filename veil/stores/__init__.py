"""Where messages live: one contract, several stores."""
