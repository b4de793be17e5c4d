"""AWS Signature Version 4, for whoever signs or verifies: the wire, the commands, the consumer."""
