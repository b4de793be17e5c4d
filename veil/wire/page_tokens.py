"""The token that asks for the next page: opaque to clients, the last name of the page before to us."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode

from veil.wire.request_errors import ParameterRefused

_CHARS_MAX = 512


def write_page_token(last: str) -> str:
    """A token for what follows that name."""
    return urlsafe_b64encode(last.encode()).decode("ascii")


def read_page_token(token: str) -> str:
    """The name behind a token; raises ParameterRefused for a text that we cannot have written."""
    try:
        if len(token) <= _CHARS_MAX:
            last = urlsafe_b64decode(token).decode("ascii")
            if write_page_token(last) == token:  # the decoder skips what is not of its alphabet
                return last
    except (binascii.Error, ValueError):
        pass
    raise ParameterRefused("NextToken", token, "Invalid or expired next token.")
