"""A queue as a Spark sink: rows become messages, by tens, several calls at a time, and a row that cannot be sent is named."""
