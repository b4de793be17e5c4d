"""Every setting of the server, in one table, checked once, each value with the place it came from.

The fields of `Settings` are the table: from a field come the flag, the variable, the name in veil.toml, the
reading of its text, the help and the reference. Flags win over `VEIL_*`, these over veil.toml, this over the
defaults. Only `load_settings` looks at the environment and the file.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from veil.core.errors import VeilError
from veil.server import setting_values as read
from veil.server.http_limits import HttpLimits
from veil.server.setting_values import DeclaredQueue, without_password
from veil.wire.sigv4 import AccessKey

CONFIG_FILE = "veil.toml"
CONFIG_VARIABLE = "VEIL_CONFIG"
DEFAULT = "default"
_FILE_BYTES_MAX = 1 << 20
# Kubernetes describes a Service whose name begins with "veil" to every pod beside it, in variables of these names; they are
# not settings. Nor are the variables of the project's own tests.
_NOT_A_SETTING = re.compile(
    r"VEIL_(\w+_)?(SERVICE_(HOST|PORT\w*)=|PORT_[0-9]+_\w+=|PORT=tcp://)|VEIL_TEST_", re.ASCII
)


class ServerSettingsError(VeilError):
    """A setting that is unknown, or a value that it cannot have."""


class SettingInfo(NamedTuple):
    name: str  # as in veil.toml, with a dot for a table: http.idle_s
    read: read.Reader
    default: Any
    help: str
    metavar: str
    has_flag: bool
    is_secret: bool

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "VEIL_" + self.name.replace(".", "_").upper()

    @property
    def is_switch(self) -> bool:
        return self.read is read.on_or_off


def _setting(
    default: Any, reader: read.Reader, metavar: str, *, flag: bool = True, secret: bool = False,
    shown: bool = True, help: str,
) -> Any:  # fmt: skip
    info = SettingInfo("", reader, default, help, metavar, flag, secret)
    return field(default=default, metadata={"info": info}, repr=shown and not secret)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of one server, already valid: constructing them reads and checks every value."""

    # fmt: off
    data: Path = _setting(Path("veil-data"), read.a_path, "DIR",  # noqa: RUF009
        help="Directory that holds the messages.")
    store: str = _setting("sqlite", read.a_store, "URL", shown=False,  # it may carry a password
        help="Where messages live: sqlite (in --data), sqlite:///DIR, memory or postgresql://HOST/DATABASE; put a "
             "password into VEIL_STORE or PGPASSFILE, since the process list shows flags.")
    host: str = _setting("127.0.0.1", read.a_host, "ADDRESS",
        help="Address to listen on; any address but loopback needs keys.")
    port: int = _setting(9324, read.a_whole_number(0, 65535), "N",
        help="Port to listen on; 0 takes a free one.")
    workers: int = _setting(0, read.a_whole_number(0, 64), "N",
        help="How many processes serve clients, before the one that has the embedded store; 0: one process does everything.")
    smq_port: int | None = _setting(None, read.optional(read.a_whole_number(0, 65535)), "N",
        help="Port for clients of Alibaba SMQ (MNS), on the same queues; 0 takes a free one.")
    base_url: str | None = _setting(None, read.optional(read.a_base_url), "URL",
        help="Beginning of every queue URL, if clients reach the server at another address; otherwise the Host header.")
    tls_cert: Path | None = _setting(None, read.optional(read.a_path), "FILE",  # noqa: RUF009
        help="Certificate in PEM, with its chain: the server then speaks TLS, and only TLS, at every port.")
    tls_key: Path | None = _setting(None, read.optional(read.a_path), "FILE",  # noqa: RUF009
        help="Private key of the certificate in PEM, without a passphrase, readable by its owner only.")
    tls_client_ca: Path | None = _setting(None, read.optional(read.a_path), "FILE",  # noqa: RUF009
        help="Certificate authorities in PEM: every client must show a certificate that one of them has signed.")
    region: str = _setting("us-east-1", read.a_region, "REGION",
        help="Region of requests whose signature names none.")
    account: str = _setting("000000000000", read.an_account, "DIGITS",
        help="Account of requests and keys that name none.")
    keys: tuple[AccessKey, ...] = _setting((), read.access_keys, "KEYS", flag=False, secret=True,
        help="Access keys, id:secret[:account[:role]]. If there are any, every request must be signed.")
    keys_file: Path | None = _setting(None, read.optional(read.a_path), "FILE",  # noqa: RUF009
        help="File of access keys, one id:secret[:account[:role]] per line, readable by its owner only.")
    allowed_hosts: tuple[str, ...] = _setting((), read.host_names, "NAMES",
        help="Additional host names that clients may use while there are no keys.")
    metrics: str = _setting("auto", read.one_of("auto", "open", "loopback", "off"), "WHO",
        help="Who may read /metrics: auto (anyone; with keys, queues by name for metrics_token only), open (anyone, all of"
             " it), loopback (this machine only), off (nobody).")
    metrics_token: str | None = _setting(None, read.optional(read.a_token), "TOKEN", flag=False, secret=True,
        help="Bearer token with which Prometheus reads the metrics of every queue by name.")
    console: str = _setting("on", read.one_of("on", "loopback", "off"), "WHO",
        help="Who may open the pages under /console: on (everybody who has access), loopback (this machine only), off (nobody).")
    console_tables: Path | None = _setting(None, read.optional(read.a_path), "DIR",  # noqa: RUF009
        help="Directory of the pipeline's tables, whose timeouts.json the console shows. Default: DATA/tables.")
    console_plain_http_login: bool = _setting(False, read.on_or_off, "",
        help="Let people on other machines log in to the console over plain HTTP, which exposes their secret to the network.")
    autopilot: bool = _setting(False, read.on_or_off, "",
        help="Run the autopilot beside the server: it keeps timeouts right on queues whose tag veil:autopilot allows it.")
    autopilot_default: str = _setting("off", read.a_policy, "POLICY",
        help="What the autopilot may do to queues without the tag: off, advise, or apply with bounds such as least=30s.")
    autopilot_webhook: str | None = _setting(None, read.optional(read.a_web_address), "URL",
        help="Where the autopilot posts its decisions as JSON.")
    rest_rules: bool = _setting(True, read.on_or_off, "",
        help="Enforce SQS's 60 seconds between purges, and before the name of a deleted queue can be used again.")
    bulk: bool = _setting(False, read.on_or_off, "",
        help="Let one send, receive, delete or extension name up to 1,000 messages; SQS allows 10.")
    lease_grace: bool = _setting(True, read.on_or_off, "",
        help="Let no lease lapse because of the server's own trouble (a stalled disk, a restart); each has a grace afterwards.")
    journal: str = _setting("on", read.a_journal, "WHERE",
        help="Record what happens to each message: on (in the data directory, if there is one), off, or a location.")
    error_texts: bool = _setting(True, read.on_or_off, "",
        help="Keep the texts and tracebacks of the errors that consumers report; off keeps only their types.")
    journal_interval_s: float = _setting(60.0, read.a_number(0, 86_400), "SECONDS",
        help="How long events may wait before they are exported.")
    journal_retention_days: int = _setting(90, read.a_whole_number(0, 36_500), "DAYS",
        help="How many days of the journal to keep; 0 keeps all of them.")
    journal_type_attributes: tuple[str, ...] = _setting(
        ("MessageType", "message_type", "Type", "type"), read.attribute_names, "NAMES",
        help="Message attributes that may hold a message's type; the first that a message has counts.")
    journal_outbox_max: int = _setting(2**30, read.a_whole_number(2**20, 2**50), "BYTES",
        help="Bytes of events that may wait to be exported; beyond that, events are dropped and counted.")
    queues: tuple[DeclaredQueue, ...] = _setting((), read.declared_queues, "NAMES",
        help="Queues to create at the start if they are missing; details in veil.toml.")
    stop_grace_s: float = _setting(10.0, read.a_number(0, 3600), "SECONDS",
        help="How long running requests may take to finish when the server stops.")
    log_level: str = _setting("info", read.one_of("debug", "info", "warning", "error"), "LEVEL",
        help="The least important lines to log: debug, info, warning or error.")
    log_format: str = _setting("text", read.one_of("text", "json"), "FORMAT",
        help="How to write log lines: text, or json for one object per line.")
    # fmt: on
    http: HttpLimits = field(default_factory=HttpLimits)
    origins: Mapping[str, str] = field(default_factory=dict)  # by name, for those that are not the default

    def __post_init__(self) -> None:
        for info in _own_rows():
            given = getattr(self, info.name)
            try:
                object.__setattr__(self, info.name, info.read(given))
            except ValueError as expected:
                raise _refusal(info, given, self.origin(info.name), str(expected)) from None
        accounted = tuple(replace(key, account=key.account or self.account) for key in self.keys)
        object.__setattr__(self, "keys", accounted)
        for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_client_ca", "tls_cert")):
            given = getattr(self, name)
            if given is not None and getattr(self, other) is None:
                raise ServerSettingsError(f"{other}: expected a file, because {name}={given} is set")

    def origin(self, name: str) -> str:
        """Where the value came from: a flag, a variable, a file, or `default`."""
        return self.origins.get(name, DEFAULT)

    @property
    def scheme(self) -> str:
        """How clients speak to the server itself: https with a certificate, http without."""
        return "http" if self.tls_cert is None else "https"

    def value(self, name: str) -> Any:
        table, _, member = name.rpartition(".")
        return getattr(self.http, member) if table else getattr(self, name)


def _own_rows() -> Iterator[SettingInfo]:
    for each in fields(Settings):
        if each.metadata:
            yield each.metadata["info"]._replace(name=each.name)


def _http_rows() -> Iterator[SettingInfo]:
    for each in fields(HttpLimits):
        # 64: below that no request fits, and every client would be refused.
        least = 64 if each.name == "header_bytes_max" else 1
        reader = read.a_number(0, 86_400) if each.name.endswith("_s") else read.a_whole_number(least, 2**40)
        yield SettingInfo(f"http.{each.name}", reader, each.default, each.metadata["help"], "N", False, False)


def settings_table() -> tuple[SettingInfo, ...]:
    return (*_own_rows(), *_http_rows())


def load_settings(
    flags: Mapping[str, object], environ: Mapping[str, str], config: str | None = None
) -> Settings:
    """The settings in effect; raises ServerSettingsError with one line that names what is wrong.

    `flags` maps names of the table to texts, None for what was not given. `config` names a file that must
    exist; without it `VEIL_CONFIG` may, and otherwise veil.toml is read if there is one.
    """
    rows = {info.name: info for info in settings_table()}
    given: dict[str, Any] = {}
    origins: dict[str, str] = {}
    # From the weakest to the strongest: each later source replaces what came before.
    for source in (
        _from_file(rows, environ, config),
        _from_environment(rows, environ),
        _from_flags(rows, flags),
    ):
        for name, value, origin in source:
            given[name], origins[name] = value, origin
    own = {name: value for name, value in given.items() if "." not in name}
    return Settings(**own, http=_http_limits(rows, given, origins), origins=origins)


_Found = Iterator[tuple[str, Any, str]]


def _from_flags(rows: Mapping[str, SettingInfo], flags: Mapping[str, object]) -> _Found:
    for name, value in flags.items():
        if value is not None:
            flag = rows[name].flag
            yield name, value, flag if value is not False else flag.replace("--", "--no-", 1)


def _from_environment(rows: Mapping[str, SettingInfo], environ: Mapping[str, str]) -> _Found:
    by_variable = {info.variable: info.name for info in rows.values()}
    for variable, value in environ.items():
        if not variable.startswith("VEIL_") or variable == CONFIG_VARIABLE:
            continue
        if _NOT_A_SETTING.match(f"{variable}={value}"):
            continue
        name = by_variable.get(variable)
        if name is None:
            # An error, not a warning: VEIL_KEY in place of VEIL_KEYS would leave a server without keys.
            raise ServerSettingsError(f"unknown variable {variable}{read.similar(variable, by_variable)}")
        yield name, value, variable


def _from_file(rows: Mapping[str, SettingInfo], environ: Mapping[str, str], config: str | None) -> _Found:
    named = config or environ.get(CONFIG_VARIABLE)
    path = Path(named or CONFIG_FILE)
    try:
        with path.expanduser().open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of what is read, not of what has the name by then
            content = tomllib.loads(
                file.read().decode("utf-8-sig")
            )  # editors on Windows begin files with a mark
    except (FileNotFoundError, RuntimeError):  # the latter of ~ without a known home
        if named:
            raise ServerSettingsError(f"config={named}: expected a file that exists") from None
        return
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
        raise ServerSettingsError(
            f"config={path}: expected a TOML file that can be read ({reason})"
        ) from None
    except tomllib.TOMLDecodeError as problem:
        raise ServerSettingsError(f"config={path}: expected TOML: {problem}") from None
    _check_privacy(path, mode, content)
    for name, value in content.items():
        is_table = name == "http" and isinstance(value, dict)
        pairs = {f"http.{each}": value[each] for each in value} if is_table else {name: value}
        for full_name, single in pairs.items():
            if full_name not in rows:
                raise ServerSettingsError(
                    f"unknown setting {full_name} in {path}{read.similar(full_name, rows)}"
                )
            yield full_name, single, str(path)


def _check_privacy(path: Path, mode: int, content: Mapping[str, object]) -> None:
    store = content.get("store")
    secrets = [name for name in ("keys", "metrics_token", "store") if name in content]
    if isinstance(store, str) and without_password(store) == store:
        secrets.remove("store")
    if secrets and mode & 0o077:
        raise ServerSettingsError(
            f"config={path}: expected a file that only its owner can read (chmod 600), because of its {' and '.join(secrets)}; "
            f"its mode is {stat.S_IMODE(mode):04o}"
        )


def read_file(setting: str, path: Path, *, private: bool = False) -> bytes:
    """The content of a setting's file; raises ServerSettingsError, also for a private file that others can read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of what is read, not of what has the name by then
            if private and (not stat.S_ISREG(mode) or mode & 0o077):
                raise ServerSettingsError(
                    f"{setting}={path}: expected a file that only its owner can read (chmod 600), "
                    f"its mode is {stat.S_IMODE(mode):04o}"
                )
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise ServerSettingsError(
            f"{setting}={path}: expected a file that can be read ({problem.strerror})"
        ) from None
    if len(content) > _FILE_BYTES_MAX:  # cut there, the last key would be half a key
        raise ServerSettingsError(f"{setting}={path}: expected a file of at most {_FILE_BYTES_MAX:,} bytes")
    return content


def _http_limits(
    rows: Mapping[str, SettingInfo], given: Mapping[str, Any], origins: Mapping[str, str]
) -> HttpLimits:
    limits: dict[str, Any] = {}
    for name, value in given.items():
        if "." in name:
            try:
                limits[name.partition(".")[2]] = rows[name].read(value)
            except ValueError as expected:
                raise _refusal(rows[name], value, origins[name], str(expected)) from None
    return HttpLimits(**limits)


def _refusal(info: SettingInfo, given: object, origin: str, expected: str) -> ServerSettingsError:
    if info.is_secret:
        shown = "(hidden)"
    elif isinstance(given, Mapping):
        shown = "{…}"
    elif isinstance(given, str):
        shown = repr(without_password(given))
    else:
        shown = repr(given)
    source = "" if origin == DEFAULT else f" ({origin})"
    return ServerSettingsError(f"{info.name}={shown[:200]}{source}: expected {expected}")


def shown_value(value: Any, *, is_secret: bool = False) -> Any:
    """The value as it may be shown, ready for JSON; secrets are counted, not shown, and no URL keeps its password."""
    if is_secret:
        return ("(hidden)" if isinstance(value, str) else f"{len(value)} (hidden)") if value else "none"
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [each.name if isinstance(each, DeclaredQueue) else each for each in value]
    return without_password(value) if isinstance(value, str) else value
