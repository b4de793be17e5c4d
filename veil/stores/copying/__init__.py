"""Carry a whole store over to another one."""
