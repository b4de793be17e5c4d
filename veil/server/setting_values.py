"""How the text of a flag, of a variable or of veil.toml becomes a value.

Every reader takes what TOML or a text can give, and its own results again; a ValueError says what was
expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from veil.core.autopilot import PolicyUnreadable, read_policy
from veil.core.errors import VeilError
from veil.core.queue import QueueKey, QueueSettings, RedrivePolicy, check_name
from veil.core.text import length_s
from veil.wire.sigv4 import AccessKey

# ---- URLs without their passwords

HIDDEN: Final = "***"
# To the last @, not to the first: where somebody forgot to escape one, too much is hidden rather than too little.
_USER_INFO = re.compile(r"^((?:[a-z0-9+.-]*:?//)?[^:@/?#]*):(?!//)(.*)@", re.IGNORECASE | re.DOTALL)
_SECRET_OPTION = re.compile(r"([?&\s](?:ssl)?password\s*=\s*)[^&\s]*", re.IGNORECASE)


def without_password(url: str) -> str:
    """The URL with `***` where a password stands; any other text as it is."""
    return _SECRET_OPTION.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(rf"\g<1>:{HIDDEN}@", url))


Reader = Callable[[object], Any]

_ON = frozenset(("on", "true", "yes", "1"))
_OFF = frozenset(("off", "false", "no", "0"))
_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9._-]{0,251}[a-z0-9_])?\Z")
_ACCOUNT = re.compile(r"[0-9]{12}\Z", re.ASCII)
_KEY_ID = re.compile(r"[!-~]{1,128}\Z")
ROLES = ("viewer", "operator", "admin")  # in the console, from the least to the most
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
STORE_EXPECTED = (
    "sqlite (in the data directory), sqlite:///DIRECTORY, memory or postgresql://USER:PASSWORD@HOST/DATABASE, of which "
    "there may be several, separated by spaces"
)
KEYS_EXPECTED = (
    "id:secret[:account[:role]], several separated by commas, no id twice, account of 12 digits, "
    "role viewer, operator or admin"
)


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _fitting(pattern: str, expected: str) -> Reader:
    fits = re.compile(pattern, re.ASCII)

    def read(value: object) -> str:
        if not fits.fullmatch(_text(value)):
            raise ValueError(expected)
        return _text(value)

    return read


# A secret that fits into a header and cannot be guessed.
a_token = _fitting(r"[A-Za-z0-9._~+/=-]{16,256}", "16 to 256 letters, digits and -._~+/=")
a_host = _fitting(r"[A-Za-z0-9:._%-]{1,253}", "an address or a host name, such as 127.0.0.1, ::1 or 0.0.0.0")
a_region = _fitting(
    r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?",
    "a region such as us-east-1: lower-case letters, digits and hyphens",
)
an_account = _fitting(r"[0-9]{12}", "an account of 12 digits, in quotes where TOML would read a number")


def a_path(value: object) -> Path:
    """A path; `~` is the home directory."""
    if isinstance(value, Path):
        return value
    if not _text(value) or "\0" in _text(value):
        raise ValueError("a path")
    return Path(_text(value)).expanduser()


def optional(read: Reader) -> Reader:
    """The same, or nothing: None and the empty text."""
    return lambda value: None if value is None or value == "" else read(value)


def a_whole_number(low: int, high: int) -> Reader:
    """A whole number in that range."""

    def read(value: object) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value.strip(), re.ASCII):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return read


def a_number(low: float, high: float) -> Reader:
    """A number in that range, fractions allowed."""

    def read(value: object) -> float:
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", value.strip(), re.ASCII):
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return float(value)

    return read


def on_or_off(value: object) -> bool:
    """A switch."""
    if isinstance(value, bool):
        return value
    text = _text(value).lower()
    if text in _ON | _OFF:
        return text in _ON
    raise ValueError("on or off")


def one_of(*choices: str) -> Reader:
    """One of a few words, in any case."""

    def read(value: object) -> str:
        text = _text(value).lower()
        if text not in choices:
            raise ValueError(", ".join(choices[:-1]) + f" or {choices[-1]}")
        return text

    return read


def a_web_address(value: object) -> str:
    """An http or https URL."""
    text = _text(value)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ValueError("an http or https URL")
    return text


def a_base_url(value: object) -> str:
    """Where clients reach the server: scheme and host, with a port if need be, and nothing after it."""
    expected = "http://HOST[:PORT] or https://HOST[:PORT], without a path"
    try:
        text = a_web_address(value).rstrip("/")
    except ValueError:
        raise ValueError(expected) from None
    parts = urlsplit(text)
    # Account and queue name are the whole path of a queue URL: a path in front of them would be taken for an account.
    if text != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc:
        raise ValueError(expected)
    return text


def a_policy(value: object) -> str:
    """What an autopilot may do, as `core.autopilot` reads it."""
    if not _text(value):
        raise ValueError("a text that is not empty")
    try:
        read_policy(_text(value))
    except PolicyUnreadable as refused:
        raise ValueError(str(refused).rpartition("expected ")[2]) from None
    return _text(value)


def a_store(value: object) -> str:
    """Which store to keep messages in, in its short form; several PostgreSQL are separated by single spaces."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = " ".join(value)
    text = _text(value)
    several = text.split()
    if len(several) > 1:
        dsns = [a_store(each) for each in several]
        if all(dsn.startswith("postgresql://") for dsn in dsns) and len(set(dsns)) == len(dsns):
            return " ".join(dsns)
        raise ValueError(STORE_EXPECTED)
    scheme, _, rest = text.partition("://")
    if scheme in ("postgres", "postgresql") and rest.strip("/"):
        return f"postgresql://{rest}"
    if text in ("memory", "memory://"):
        return "memory"
    if text in ("sqlite", "sqlite://"):
        return "sqlite"
    if text.startswith("sqlite:///") and text.strip("/") != "sqlite:":
        return text
    raise ValueError(STORE_EXPECTED)


def a_journal(value: object) -> str:
    """Whether there is a journal and where: on, off, or a location as it was written."""
    if isinstance(value, bool):
        return "on" if value else "off"
    text = _text(value)
    if text.lower() in _ON | _OFF:
        return "on" if text.lower() in _ON else "off"
    from veil.journal.storage import Storage

    try:
        Storage.at(text)
    except ValueError as expected:
        raise ValueError(f"on, off, or {expected}") from None
    return text


def attribute_names(value: object) -> tuple[str, ...]:
    """Names of message attributes, in the order in which to look for them."""
    expected = "names of message attributes of letters, digits, _, - and ., separated by commas"
    names = tuple(name.strip() for name in _listed(value, expected))
    if not all(_ATTRIBUTE.match(name) for name in names):
        raise ValueError(expected)
    return names


def host_names(value: object) -> tuple[str, ...]:
    """Names that clients may call the server by; `*.` in front stands for everything below a name."""
    expected = "host names without a port, such as veil.internal or *.test, separated by commas"
    lowered = tuple(name.strip().lower().rstrip(".") for name in _listed(value, expected))
    if not all(_HOST.match(name) for name in lowered):
        raise ValueError(expected)
    return lowered


def access_keys(value: object) -> tuple[AccessKey, ...]:
    """Keys from `id:secret[:account[:role]],…` or from TOML's `[[keys]]`; an account left out is the server's own."""
    if isinstance(value, str):
        keys = [_key_from_text(each.strip()) for each in value.split(",") if each.strip()]
    elif isinstance(value, list | tuple):
        keys = [each if isinstance(each, AccessKey) else _key_from_table(each) for each in value]
    else:
        raise ValueError(KEYS_EXPECTED)
    if len({key.key_id for key in keys}) != len(keys):
        raise ValueError(KEYS_EXPECTED)
    return tuple(keys)


def _key_from_text(text: str) -> AccessKey:
    parts = text.split(":")
    # A generated secret may hold slashes and pluses, never a colon.
    if not 2 <= len(parts) <= 4:
        raise ValueError(KEYS_EXPECTED)
    key_id, secret, account, role = (*parts, "", "")[:4]
    return _key(key_id, secret, account, role or ROLES[-1])


def _key_from_table(table: object) -> AccessKey:
    known = {"id", "secret", "account", "role"}
    is_key = isinstance(table, Mapping) and {"id", "secret"} <= table.keys() <= known
    if not isinstance(table, Mapping) or not is_key or table.get("role", ROLES[-1]) not in ROLES:
        raise ValueError(
            "[[keys]] with id and secret, account if it is not the server's own, and role for the console "
            "(viewer, operator or admin)"
        )
    return _key(table["id"], table["secret"], table.get("account", ""), table.get("role", ROLES[-1]))


def _key(key_id: object, secret: object, account: object, role: object) -> AccessKey:
    good = isinstance(key_id, str) and _KEY_ID.match(key_id) and isinstance(secret, str) and secret.strip()
    if not good or not isinstance(account, str) or (account and not _ACCOUNT.match(account)):
        raise ValueError(KEYS_EXPECTED)
    if role not in ROLES:
        raise ValueError(KEYS_EXPECTED)
    return AccessKey(str(key_id), str(secret).strip(), account, str(role))


def _listed(value: object, expected: str) -> list[str]:
    if isinstance(value, str):
        return [each for each in value.split(",") if each.strip()]
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return list(value)
    raise ValueError(expected)


# ---- queues written down in veil.toml, or named in a flag or a variable

# The name in veil.toml, and the setting of a queue that it means.
_LENGTHS = {
    "visibility_timeout": "visibility_s",
    "delay": "delay_s",
    "retention": "retention_s",
    "receive_wait": "wait_s",
}
_KINDS = {bool: "true or false", int: "a whole number", str: "a text", dict: "a table of texts"}
_WORDS: Mapping[str, type] = {
    "fifo": bool,
    "content_deduplication": bool,
    "max_message_bytes": int,
    "dead_letter": str,
    "max_receives": int,
    "tags": dict,
}


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """A queue that should exist: only what was written down is set, the rest is the default."""

    name: str
    given: Mapping[str, Any] = field(default_factory=dict)  # fields of QueueSettings, redrive aside
    dead_letter: str | None = None
    receives_max: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def fifo(self) -> bool:
        return self.name.endswith(".fifo")


def declared_queues(value: object) -> tuple[DeclaredQueue, ...]:
    """Queues from `[queues.NAME]` tables or from names separated by commas, dead letters before those who use them."""
    if isinstance(value, str):
        value = {name.strip(): {} for name in value.split(",") if name.strip()}
    if isinstance(value, tuple) and all(isinstance(each, DeclaredQueue) for each in value):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("[queues.NAME] tables, or names separated by commas")
    declared: dict[str, DeclaredQueue] = {}
    for name, table in value.items():
        queue = _declared(name, table)
        if queue.name in declared:
            raise ValueError(f"each queue once, but {queue.name} is there twice")
        declared[queue.name] = queue
    for queue in tuple(declared.values()):
        # A dead-letter queue with nothing to say about it need not be written down.
        if queue.dead_letter is not None:
            declared.setdefault(queue.dead_letter, DeclaredQueue(queue.dead_letter, _fifo(queue.fifo)))
    return _dead_letters_first(declared)


def _declared(name: str, table: object) -> DeclaredQueue:
    if not isinstance(table, Mapping):
        raise ValueError(f"[queues.{name}] to be a table")
    for word, entry in table.items():
        if word not in _LENGTHS and word not in _WORDS:
            raise ValueError(f"in [queues.{name}] only {', '.join((*_LENGTHS, *_WORDS))}, not {word}")
        kind = _WORDS.get(word)
        if kind is not None and (not isinstance(entry, kind) or (kind is int and isinstance(entry, bool))):
            raise ValueError(f"{_KINDS[kind]} for {word} in [queues.{name}], not {entry!r}")
    fifo = table.get("fifo", name.endswith(".fifo"))
    if name.endswith(".fifo") and not fifo:
        raise ValueError(f"fifo = true in [queues.{name}], whose name ends in .fifo")
    given: dict[str, Any] = _fifo(fifo)
    for word, setting in _LENGTHS.items():
        if word in table:
            given[setting] = _length_s(name, word, table[word])
    if "max_message_bytes" in table:
        given["message_bytes_max"] = table["max_message_bytes"]
    if "content_deduplication" in table:
        if not fifo:
            raise ValueError(f"content_deduplication on FIFO queues only, not in [queues.{name}]")
        given["content_deduplication"] = table["content_deduplication"]
    dead_letter = _named(table["dead_letter"], fifo) if "dead_letter" in table else None
    if (dead_letter is None) != ("max_receives" not in table):
        raise ValueError(f"dead_letter and max_receives together in [queues.{name}]")
    receives_max = table.get("max_receives", 0)
    tags = table.get("tags", {})
    if not all(isinstance(each, str) for each in tags.values()):
        raise ValueError(f"a table of texts for tags in [queues.{name}]")
    queue = DeclaredQueue(_named(name, fifo), given, dead_letter, receives_max, tags)
    try:
        check_name(queue.name, fifo)
        if dead_letter is not None:
            check_name(dead_letter, fifo)
        settings_given(queue, QueueKey("", "", queue.name))
    except VeilError as refusal:
        raise ValueError(f"a queue that can exist in [queues.{name}]: {refusal}") from None
    return queue


def _fifo(fifo: bool) -> dict[str, Any]:
    return {"fifo": True} if fifo else {}


def _named(name: str, fifo: bool) -> str:
    # A dot in a TOML key needs quotes, so `[queues.orders]` with fifo = true means orders.fifo.
    return name if not fifo or name.endswith(".fifo") else f"{name}.fifo"


def _length_s(name: str, word: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    seconds = length_s(value) if isinstance(value, str) and not value.isdigit() else None
    if seconds is None:
        raise ValueError(f'seconds or a text such as "30s", "5m", "12h", "4d" for {word} in [queues.{name}]')
    return seconds


def _dead_letters_first(declared: dict[str, DeclaredQueue]) -> tuple[DeclaredQueue, ...]:
    ordered: dict[str, DeclaredQueue] = {}
    for queue in declared.values():
        chain = [queue]
        while (after := chain[-1].dead_letter) is not None and after not in ordered:
            if any(each.name == after for each in chain):
                raise ValueError(f"dead letters to end somewhere, but those of {after} come back to it")
            chain.append(declared[after])
        ordered.update((each.name, each) for each in reversed(chain) if each.name not in ordered)
    return tuple(ordered.values())


def settings_given(queue: DeclaredQueue, key: QueueKey) -> dict[str, Any]:
    """What to give for the queue of that key; raises SettingRefused for what is out of range."""
    given = dict(queue.given)
    if queue.dead_letter is not None:
        dead_letters = QueueKey(key.region, key.account, queue.dead_letter)
        given["redrive"] = RedrivePolicy(dead_letters, queue.receives_max)
    QueueSettings(**given)
    return given
