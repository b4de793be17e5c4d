"""What comes in as XML is read safely: nothing is expanded, nothing fetched, nothing without end."""

from __future__ import annotations

import pytest

from veil.core.text import xml_text
from veil.wire.smq.codes import XmlMalformed
from veil.wire.smq.xml import DEPTH_MAX, ELEMENTS_MAX, document, element, local_name, read_xml, texts

LAUGHS = b'<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;&x;">]><Message><MessageBody>&y;</MessageBody></Message>'


@pytest.mark.parametrize(
    "body",
    [
        LAUGHS,
        b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        b'<?xml version="1.0"?><!DOCTYPE a><a/>',
        b"<a>&undeclared;</a>",
        b"<a>" * (DEPTH_MAX + 1) + b"<!---->" + b"</a>" * (DEPTH_MAX + 1),
        b"<r>" + b"<a/>" * (ELEMENTS_MAX + 1) + b"</r>",
        b"<a>" * 100_000,
        b"<a></b>",
        b"<a/><b/>",
        b"<p:a/>",
        b"<a>\x00</a>",
        b"<a>\xff</a>",
        "<a/>".encode("utf-16"),
        '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a><a/>'.encode("utf-16"),
        b"",
        b"   ",
        b"not xml",
        b'{"json": true}',
    ],
)
def test_what_is_not_a_plain_document_is_refused(body: bytes) -> None:
    with pytest.raises(XmlMalformed):
        read_xml(body)


def test_names_are_read_without_their_namespace_and_entities_as_characters() -> None:
    plain = b"<m:Message xmlns:m='urn:x'><m:A> a &amp; b </m:A><B>&#228;</B><C/></m:Message>"
    root = read_xml(plain)
    assert local_name(root) == "Message"
    assert texts(root) == {"A": " a & b ", "B": "ä", "C": ""}


@pytest.mark.parametrize(
    "body",
    [
        b"<A>x]]></A>",
        b"<A><B>x]]></B></A>",
        b"<A><B>x</C></A>",
        b"<A><B>x</B>y</A>z",
        b"<A><B>&x;</B></A>",
        b"<A><B>\x01</B></A>",
        b"<A><B>x</B></B></A>",
        b"<A><B>x</B><B></A>",
        b"<A><1>x</1></A>",
        b"x<A></A>",
        b"<A></A><B></B>",
        b"<A xmlns='><B>x</B></A>",
        b'<?xml version="1.0"?>',
        b"<A>",
    ],
)
def test_what_is_not_well_formed_is_refused(body: bytes) -> None:
    with pytest.raises(XmlMalformed):
        read_xml(body)


def test_text_is_whole_though_comments_and_sections_divide_it() -> None:
    root = read_xml(b"<r><a>one<!-- x -->two<![CDATA[<three>]]></a></r>")
    assert texts(root) == {"a": "onetwo<three>"}


def test_a_document_says_in_another_encoding_than_it_has_is_read_as_utf_8() -> None:
    assert read_xml('<?xml version="1.0" encoding="latin-1"?><a>ä</a>'.encode()).text == "ä"


def test_what_is_written_can_be_read() -> None:
    text = "a<b>&\"'\r\n]]>\t\N{SNOWMAN}"
    assert texts(read_xml(document("R", element("T", text) + element("N", 7)))) == {"T": text, "N": "7"}


def test_what_xml_cannot_carry_is_replaced() -> None:
    assert xml_text("a\x00b\ud800c\uffff") == "a\ufffdb\ufffdc\ufffd"


def test_a_large_document_reads_like_a_small_one_and_no_tag_in_it_may_be_long() -> None:
    text = "a&amp;<![CDATA[<b>]]>é\n" * 30_000
    body = f"<?xml version='1.0'?><Message><!-- {'- ' * 100_000} --><MessageBody>{text}</MessageBody></Message>".encode()

    assert texts(read_xml(body)) == {"MessageBody": "a&<b>é\n" * 30_000}
    for long in (b"<" + b"a" * 70_000 + b"/>", b"<Message " + b"a='b' " * 20_000 + b"/>"):
        with pytest.raises(XmlMalformed, match="a tag of more than 65536 bytes"):
            read_xml(b"<a>" + b"\n" * 1_040_000 + long + b"</a>")
