"""SMQ's XML: read within bounds, written with everything escaped."""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from veil.core.text import xml_text
from veil.wire.exchange import Response
from veil.wire.smq.codes import SmqRefusal, XmlMalformed

# ---- reading
#
# Elements are told by their local names: SMQ's SDKs disagree on the namespace.

DEPTH_MAX: Final = 8  # Messages, Message, UserProperties, PropertyValue, Name
ELEMENTS_MAX: Final = 5_000
# A call of the parser keeps the interpreter's lock: a thread that reads a large document gives way after each.
_SLICE_BYTES: Final = 64 * 1024
_TAG_BYTES_MAX: Final = 65_536
_LONG_TAG: Final = re.compile(rb"<[^!<>][^<>]{%d}" % (_TAG_BYTES_MAX - 2))


def read_xml(body: bytes) -> Element:
    """The document's root; raises XmlMalformed."""
    # In UTF-16, which the parser would know by its first bytes whatever it was told, every angle bracket has a zero beside
    # it: without one the bytes below are what they look like.
    if b"\0" in body:
        raise XmlMalformed("the XML is not UTF-8")
    # The parser reads a tag in one go, however long it is.
    slices = range(0, len(body), 1 << 20) if len(body) > _TAG_BYTES_MAX else range(0)
    if any(_LONG_TAG.search(body, at, at + (1 << 20) + _TAG_BYTES_MAX) for at in slices):
        raise XmlMalformed(f"a tag of more than {_TAG_BYTES_MAX} bytes")
    builder, depth, count = TreeBuilder(), 0, 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if depth > DEPTH_MAX:
            raise XmlMalformed(f"more than {DEPTH_MAX} elements inside one another")
        if count > ELEMENTS_MAX:
            raise XmlMalformed(f"more than {ELEMENTS_MAX} elements")
        builder.start(name, {})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def refuse(*_: object) -> None:
        raise XmlMalformed("a document type declaration is not allowed")

    parser = expat.ParserCreate("utf-8", "}")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        at, size = 0, _SLICE_BYTES
        while at < len(body):
            parser.Parse(body[at : at + size], False)
            behind = at + size
            # What is cut through, say a comment, is read from its beginning again with the next slice: the longer it is, the
            # larger are the slices.
            size = 2 * size if parser.CurrentByteIndex < at else _SLICE_BYTES
            at = behind
        parser.Parse(b"", True)
    except expat.ExpatError as problem:
        raise XmlMalformed(f"the XML is not well-formed: {problem}") from None
    return builder.close()


def local_name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def children(element: Element) -> dict[str, Element]:
    """The element's children by local name; of several alike the last counts."""
    return {local_name(each): each for each in element}


def text_of(element: Element) -> str:
    """The element's whole text; raises XmlMalformed where elements divide it: a client has not escaped what it sent."""
    if len(element):
        raise XmlMalformed(f"{local_name(element)} must have text only: write < as &lt; and & as &amp;")
    return element.text or ""


def texts(element: Element) -> dict[str, str]:
    return {local_name(each): text_of(each) for each in element}


# ---- writing

DECLARATION: Final = '<?xml version="1.0" encoding="utf-8"?>'
# Without the slash at the end that Alibaba's documents show: its SDK for Java reads an error in no other namespace, and the
# others go by local names.
NAMESPACE: Final = "http://mns.aliyuncs.com/doc/v1"


def document(root: str, content: str) -> bytes:
    """A whole document; the content is XML already."""
    return f'{DECLARATION}<{root} xmlns="{NAMESPACE}">{content}</{root}>'.encode()


def element(name: str, value: str | int) -> str:
    return f"<{name}>{value if isinstance(value, int) else xml_text(value)}</{name}>"


# ---- answers
#
# Names of headers are in lower case where the SDKs look them up so.

CONTENT_TYPE: Final = "text/xml;charset=utf-8"
VERSION: Final = "2015-06-06"


def answer(status: int, body: bytes = b"", *headers: tuple[str, str]) -> Response:
    """What an operation comes to; the front end adds the request id."""
    return Response(status, body, CONTENT_TYPE, (("x-mns-version", VERSION), *headers))


def with_id(response: Response, request_id: str) -> Response:
    response.headers += (("x-mns-request-id", request_id),)
    return response


def refuse(refusal: SmqRefusal, request_id: str, host_id: str) -> Response:
    """The error document; SDKs miss each of its four elements that is not there."""
    content = (
        element("Code", refusal.code)
        + element("Message", refusal.message)
        + element("RequestId", request_id)
        + element("HostId", host_id)
    )
    return with_id(answer(refusal.status, document("Error", content)), request_id)
