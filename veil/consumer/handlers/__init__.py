"""What a handler is: its signature, the payload it asks for, how it is run, and what it says about its message."""
