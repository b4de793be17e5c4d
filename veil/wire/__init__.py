"""Bytes to operations and back: the AWS JSON and Query protocols, signatures, error tables."""
