"""How the text of a flag, of a variable or of veil.toml becomes a value.

Every reader takes what TOML or a text can give, and its own results again; a ValueError says what was
expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from veil.core.autopilot import PolicyUnreadable, read_policy
from veil.core.errors import SettingRefused, VeilError
from veil.core.queue import TOML_NAMES, QueueKey, QueueSettings, RedrivePolicy, check_name
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
_ATTRIBUTE = re.compile(r"[A-Za-z0-9_.-]{1,256}\Z")
STORE_EXPECTED = (
    "sqlite (in the data directory), sqlite:///DIRECTORY, memory or postgresql://USER:PASSWORD@HOST/DATABASE, of which "
    "there may be several, separated by spaces"
)
KEYS_EXPECTED = (
    "id:secret[:account[:role]], several separated by commas, no id twice, account of 12 digits, "
    "role viewer, operator or admin"
)
_KEY_TABLE_EXPECTED: Final = (
    "[[keys]] with id and secret, account if it is not the server's own, and role for the console "
    "(viewer, operator or admin)"
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
    try:
        return Path(_text(value)).expanduser()
    except RuntimeError:  # nobody of that name, or no home at all
        raise ValueError("a path with a known home directory in place of ~") from None


def optional(read: Reader) -> Reader:
    """The same, or nothing: None and the empty text."""
    return lambda value: None if value is None or value == "" else read(value)


def a_whole_number(low: int, high: int) -> Reader:
    return _ranged(int, r"-?[0-9]{1,18}", f"a whole number from {low} to {high}", low, high)


def a_number(low: float, high: float) -> Reader:
    return _ranged(float, r"[0-9]{1,12}(\.[0-9]{1,6})?", f"a number from {low:g} to {high:g}", low, high)


def _ranged(kind: type[int] | type[float], pattern: str, expected: str, low: float, high: float) -> Reader:
    fits = re.compile(pattern, re.ASCII)

    def read(value: object) -> int | float:
        if isinstance(value, str) and fits.fullmatch(value.strip()):
            value = kind(value)
        # A whole number is a number, a truth value is neither.
        if not isinstance(value, int | kind) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(expected)
        return kind(value)

    return read


def on_or_off(value: object) -> bool:
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


class _KeyTable(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,128}\Z")]
    # A generated secret may hold slashes and pluses, never a colon.
    secret: Annotated[str, msgspec.Meta(pattern=r"\S")]
    account: Annotated[str, msgspec.Meta(pattern=r"^([0-9]{12})?\Z")] = ""
    role: Literal["viewer", "operator", "admin"] = "admin"


def access_keys(value: object) -> tuple[AccessKey, ...]:
    """Keys from `id:secret[:account[:role]],…` or from TOML's `[[keys]]`; an account left out is the server's own."""
    if isinstance(value, str):
        written = [each.strip().split(":") for each in value.split(",") if each.strip()]
        if any(len(parts) > len(_KeyTable.__struct_fields__) for parts in written):
            raise ValueError(KEYS_EXPECTED)
        tables = [
            {name: part for name, part in zip(_KeyTable.__struct_fields__, parts, strict=False) if part}
            for parts in written
        ]
        keys = [_access_key(table, KEYS_EXPECTED) for table in tables]
    elif isinstance(value, list | tuple):
        keys = [
            each if isinstance(each, AccessKey) else _access_key(each, _KEY_TABLE_EXPECTED) for each in value
        ]
    else:
        raise ValueError(KEYS_EXPECTED)
    if len({key.key_id for key in keys}) != len(keys):
        raise ValueError(KEYS_EXPECTED)
    return tuple(keys)


def _access_key(table: object, expected: str) -> AccessKey:
    try:
        key = msgspec.convert(table, _KeyTable)
    except msgspec.ValidationError:
        raise ValueError(expected) from None
    return AccessKey(key.id, key.secret.strip(), key.account, key.role)


def _listed(value: object, expected: str) -> list[str]:
    if isinstance(value, str):
        return [each for each in value.split(",") if each.strip()]
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return list(value)
    raise ValueError(expected)


# ---- queues written down in veil.toml, or named in a flag or a variable


class _QueueTable(msgspec.Struct, forbid_unknown_fields=True):
    visibility_timeout: int | str | None = None
    delay: int | str | None = None
    retention: int | str | None = None
    receive_wait: int | str | None = None
    fifo: bool | None = None
    content_deduplication: bool | None = None
    max_message_bytes: int | None = None
    dead_letter: str | None = None
    max_receives: int | None = None
    tags: dict[str, str] = {}


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
            raise ValueError(f"each queue once, but {queue.name} is given twice")
        declared[queue.name] = queue
    for queue in tuple(declared.values()):
        # A dead-letter queue with nothing to say about it need not be written down.
        if queue.dead_letter is not None:
            declared.setdefault(queue.dead_letter, DeclaredQueue(queue.dead_letter, _fifo(queue.fifo)))
    return _dead_letters_first(declared)


def similar(name: str, known: Iterable[str]) -> str:
    """A question about a misspelled name; nothing where none is like it."""
    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _declared(name: str, written: object) -> DeclaredQueue:
    known = _QueueTable.__struct_fields__
    for word in written if isinstance(written, Mapping) else ():
        if word not in known:
            advice = similar(word, known) or f"; these are {', '.join(known)}"
            raise ValueError(f"known settings in [queues.{name}], not {word}{advice}")
    try:
        table = msgspec.convert(written, _QueueTable)
    except msgspec.ValidationError as problem:
        raise ValueError(f"[queues.{name}] to be a table of {', '.join(known)}: {problem}") from None
    fifo = name.endswith(".fifo") if table.fifo is None else table.fifo
    if name.endswith(".fifo") and not fifo:
        raise ValueError(f"fifo = true in [queues.{name}], whose name ends in .fifo")
    if table.content_deduplication is not None and not fifo:
        raise ValueError(f"content_deduplication on FIFO queues only, not in [queues.{name}]")
    written_down = {word: each for word in TOML_NAMES if (each := getattr(table, word)) is not None}
    given: dict[str, Any] = {
        TOML_NAMES[word]: _length_s(name, word, each) if TOML_NAMES[word].endswith("_s") else each
        for word, each in written_down.items()
        if word != "fifo"
    } | _fifo(fifo)
    if (table.dead_letter is None) != (table.max_receives is None):
        raise ValueError(f"dead_letter and max_receives together in [queues.{name}]")
    dead_letter = None if table.dead_letter is None else _named(table.dead_letter, fifo)
    queue = DeclaredQueue(_named(name, fifo), given, dead_letter, table.max_receives or 0, table.tags)
    try:
        check_name(queue.name, fifo)
        if dead_letter is not None:
            check_name(dead_letter, fifo)
        settings_given(queue, QueueKey("", "", queue.name))
    except SettingRefused as refusal:
        word = next((word for word, setting in TOML_NAMES.items() if setting == refusal.setting), None)
        told = f"{word or refusal.setting} = {getattr(table, word or '', refusal.value)}"
        raise ValueError(f"a queue that can exist in [queues.{name}]: {told} {refusal.expected}") from None
    except VeilError as refusal:
        raise ValueError(f"a queue that can exist in [queues.{name}]: {refusal}") from None
    return queue


def _fifo(fifo: bool) -> dict[str, Any]:
    return {"fifo": True} if fifo else {}


def _named(name: str, fifo: bool) -> str:
    # A dot in a TOML key needs quotes, so `[queues.orders]` with fifo = true means orders.fifo.
    return name if not fifo or name.endswith(".fifo") else f"{name}.fifo"


def _length_s(name: str, word: str, value: int | str) -> int:
    seconds = value if isinstance(value, int) else None if value.isdigit() else length_s(value)
    if seconds is None:
        raise ValueError(f'seconds or a text such as "30s", "5m", "12h", "4d" for {word} in [queues.{name}]')
    return seconds


def _dead_letters_first(declared: dict[str, DeclaredQueue]) -> tuple[DeclaredQueue, ...]:
    ordered: dict[str, DeclaredQueue] = {}
    for queue in declared.values():
        chain = [queue]
        while (after := chain[-1].dead_letter) is not None and after not in ordered:
            if any(each.name == after for each in chain):
                raise ValueError(f"no circle of dead letters, but those of {after} come back to it")
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
