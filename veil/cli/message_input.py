"""Bodies and attributes from the command line."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

AttributeValue = dict[str, str]


def read_body(text: str) -> str:
    """The body that BODY means: itself, `-` for stdin, `@FILE` for a file; to the last byte, newlines too."""
    if text == "-":
        return _decoded(sys.stdin.buffer.read(), "BODY", "stdin")
    if text.startswith("@"):
        return _decoded(_file(text[1:], "BODY"), "BODY", text[1:])
    return text


def read_attributes(options: Sequence[str]) -> dict[str, AttributeValue]:
    """Message attributes from NAME=VALUE (a String), NAME:Number=5 and NAME:Binary=@FILE."""
    attributes: dict[str, AttributeValue] = {}
    for text in options:
        left, equals, value = text.partition("=")
        name, _, data_type = left.partition(":")
        data_type = data_type or "String"
        kind = data_type.partition(".")[0]
        if not name or not equals or kind not in ("String", "Number", "Binary"):
            raise typer.BadParameter(
                f"{text!r}: expected NAME=VALUE, NAME:Number=VALUE or NAME:Binary=@FILE",
                param_hint="--attribute",
            )
        if name in attributes:
            raise typer.BadParameter(f"{name!r}: given twice, expected once", param_hint="--attribute")
        attributes[name] = {"DataType": data_type, **_value(kind, value)}
    return attributes


def _value(kind: str, value: str) -> AttributeValue:
    if kind == "Binary":
        content = _file(value[1:], "--attribute") if value.startswith("@") else value.encode()
        return {"BinaryValue": base64.b64encode(content).decode()}
    return {"StringValue": value}


def _file(name: str, parameter: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise typer.BadParameter(
            f"{name!r}: expected a file that can be read ({error.strerror})", param_hint=parameter
        ) from None


def _decoded(content: bytes, parameter: str, source: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"{source}: expected UTF-8, byte {error.start} is not", param_hint=parameter
        ) from None
