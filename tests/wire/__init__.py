"""The wire protocols, called directly, over sockets, and by real clients."""
