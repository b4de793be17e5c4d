"""Handling what is sent, or delivered, twice only once."""
