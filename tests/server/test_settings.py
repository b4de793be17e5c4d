"""Settings: where a value comes from, and what is said about one that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from veil.server.access import gather_keys
from veil.server.http_limits import HttpLimits
from veil.server.settings import ServerSettingsError, Settings, load_settings, settings_table, shown_value
from veil.wire.sigv4 import AccessKey


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write veil.toml into an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = Path("veil.toml")
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


def refusal(flags=None, environ=None, config=None) -> str:
    with pytest.raises(ServerSettingsError) as caught:
        load_settings(flags or {}, environ or {}, config)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_without_anything_every_value_is_the_default(toml):
    settings = load_settings({}, {})
    assert settings.port == 9324
    assert settings.host == "127.0.0.1"
    assert settings.data == Path("veil-data")
    assert {settings.origin(info.name) for info in settings_table()} == {"default"}


def test_flags_win_over_variables_over_the_file_over_defaults(toml):
    toml('port = 1\nregion = "eu-west-1"\naccount = "111111111111"\n')
    settings = load_settings({"port": "3"}, {"VEIL_PORT": "2", "VEIL_REGION": "eu-west-2"})
    assert (settings.port, settings.region, settings.account) == (3, "eu-west-2", "111111111111")
    assert settings.origin("port") == "--port"
    assert settings.origin("region") == "VEIL_REGION"
    assert settings.origin("account") == "veil.toml"
    assert settings.origin("host") == "default"


def test_a_switch_can_be_turned_off_everywhere(toml):
    assert not load_settings({"rest_rules": False}, {}).rest_rules
    assert load_settings({"rest_rules": False}, {}).origin("rest_rules") == "--no-rest-rules"
    assert not load_settings({}, {"VEIL_REST_RULES": "off"}).rest_rules
    toml("rest_rules = false")
    assert not load_settings({}, {}).rest_rules


def test_limits_of_http_have_a_table_and_variables_of_their_own(toml):
    toml("[http]\nidle_s = 5\nheader_count_max = 7\n")
    settings = load_settings({}, {"VEIL_HTTP_IDLE_S": "6.5"})
    assert settings.http == HttpLimits(idle_s=6.5, header_count_max=7)
    assert settings.origin("http.idle_s") == "VEIL_HTTP_IDLE_S"
    assert settings.origin("http.header_count_max") == "veil.toml"


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("VEIL_PORT", "abc", "port='abc' (VEIL_PORT): expected a whole number from 0 to 65535"),
        ("VEIL_PORT", "65536", "port='65536' (VEIL_PORT): expected a whole number from 0 to 65535"),
        ("VEIL_PORT", "９３", "port='９３' (VEIL_PORT): expected a whole number from 0 to 65535"),
        ("VEIL_HOST", "a b", "host='a b' (VEIL_HOST): expected an address"),
        ("VEIL_STORE", "mysql://x", "store='mysql://x' (VEIL_STORE): expected sqlite"),
        ("VEIL_STORE", "postgresql://", "store='postgresql://' (VEIL_STORE): expected sqlite"),
        ("VEIL_STORE", "mysql://me:hunter2@x", "store='mysql://me:***@x' (VEIL_STORE): expected sqlite"),
        ("VEIL_STORE", "sqlite:///", "store='sqlite:///' (VEIL_STORE): expected sqlite"),
        ("VEIL_REGION", "US East", "region='US East' (VEIL_REGION): expected a region"),
        ("VEIL_ACCOUNT", "12", "account='12' (VEIL_ACCOUNT): expected an account of 12 digits"),
        ("VEIL_BASE_URL", "ftp://x", "base_url='ftp://x' (VEIL_BASE_URL): expected http://HOST"),
        ("VEIL_BASE_URL", "http://x/path", "without a path"),
        ("VEIL_BASE_URL", "http://u:p@x", "expected http://HOST"),
        ("VEIL_REST_RULES", "maybe", "rest_rules='maybe' (VEIL_REST_RULES): expected on or off"),
        ("VEIL_LOG_LEVEL", "loud", "expected debug, info, warning or error"),
        ("VEIL_LOG_FORMAT", "xml", "expected text or json"),
        ("VEIL_METRICS", "some", "expected auto, open, loopback or off"),
        (
            "VEIL_METRICS_TOKEN",
            "short",
            "metrics_token=(hidden) (VEIL_METRICS_TOKEN): expected 16 to 256 letters",
        ),
        ("VEIL_ALLOWED_HOSTS", "a:1", "expected host names without a port"),
        ("VEIL_ALLOWED_HOSTS", "*", "expected host names without a port"),
        ("VEIL_STOP_GRACE_S", "-1", "expected a number from 0 to 3600"),
        ("VEIL_HTTP_IDLE_S", "x", "http.idle_s='x' (VEIL_HTTP_IDLE_S): expected a number"),
        ("VEIL_HTTP_HEADER_BYTES_MAX", "1", "(VEIL_HTTP_HEADER_BYTES_MAX): expected a whole number from 64"),
        ("VEIL_QUEUES", "a b", "queue name 'a b'"),
        ("VEIL_PROT", "1", "unknown variable VEIL_PROT; did you mean VEIL_PORT?"),
        ("VEIL_CONFIG", "none.toml", "config=none.toml: expected a file that exists"),
    ],
)
def test_a_wrong_value_is_told_in_one_line_with_its_name_its_source_and_what_was_expected(
    toml, variable, value, told
):
    assert told in refusal(environ={variable: value})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot = 1", "unknown setting prot in veil.toml; did you mean port?"),
        ("[http]\nidle = 1", "unknown setting http.idle in veil.toml"),
        ("[server]\nport = 1", "unknown setting server in veil.toml"),
        ("http = 5", "unknown setting http in veil.toml"),
        ('port = "x', "config=veil.toml: expected TOML"),
        ("port = true", "port=True (veil.toml): expected a whole number"),
        ("port = 1.5", "port=1.5 (veil.toml): expected a whole number"),
        ("account = 123456789012", "account=123456789012 (veil.toml): expected an account of 12 digits, in quotes"),
        ("keys = 5", "keys=(hidden) (veil.toml): expected id:secret"),
        ('[[keys]]\nid = "a"', "expected [[keys]] with id and secret"),
        ('[[keys]]\nid = "a"\nsecret = "b"\nrole = "c"', "expected [[keys]] with id and secret"),
        ("queues = 5", "expected [queues.NAME] tables"),
        ("queues.a = 5", "expected [queues.a] to be a table of visibility_timeout, delay"),
        ("[queues.a]\nvisibility = 5", "expected known settings in [queues.a], not visibility; did you mean visibility_timeout?"),
        ("[queues.a]\nvisibility_timeout = 43201", "visibility_timeout = 43201 must be between 0 and 43200"),
        ('[queues.a]\ndelay = "5 minutes"', "for delay in [queues.a]"),
        ('[queues.a]\nfifo = "yes"', "Expected `bool | null`, got `str` - at `$.fifo`"),
        ('[queues."a.fifo"]\nfifo = false', "whose name ends in .fifo"),
        ("[queues.a]\nmax_receives = 3", "dead_letter and max_receives together in [queues.a]"),
        ('[queues.a]\ndead_letter = "b"', "dead_letter and max_receives together in [queues.a]"),
        ('[queues.a]\ndead_letter = "a"\nmax_receives = 1', "those of a come back to it"),
        ("[queues.a]\ncontent_deduplication = true", "on FIFO queues only"),
        ('[queues.a]\nvisibility_timeout = "13h"', "visibility_timeout = 13h must be between 0 and 43200"),
        ("[queues.a]\nmax_receives = true", "Expected `int | null`, got `bool` - at `$.max_receives`"),
        ("[queues.a.tags]\nteam = 5", "Expected `str`, got `int` - at `$.tags[...]`"),
        ("[queues.a]\nfifo = true\n[queues.'a.fifo']\n", "each queue once, but a.fifo is given twice"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_told_in_one_line(toml, text, told):
    toml(text)
    assert told in refusal()


def test_a_secret_is_never_told(toml):
    assert "hunter2" not in refusal(environ={"VEIL_KEYS": "id:hunter2:12"})
    settings = load_settings({}, {"VEIL_KEYS": "id:hunter2"})
    assert "hunter2" not in repr(settings)
    assert shown_value(settings.keys, is_secret=True) == "1 (hidden)"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@db.internal:5432/veil",
        "postgresql://me:hunter2@one:5432,two:5433/veil?target_session_attrs=read-write",
        "postgresql://me@db.internal/veil?password=hunter2&sslmode=require",
        "postgresql://me:hunter2/with@odd?characters@db.internal/veil",
    ],
)
def test_the_password_of_a_database_is_never_told(toml, url):
    settings = load_settings({}, {"VEIL_STORE": url})
    shown = shown_value(settings.store)
    assert settings.store == url
    assert "hunter2" not in shown
    assert shown.endswith(url.rpartition("@")[2]) or "password=***" in shown
    assert "hunter2" not in repr(settings)


def test_a_url_without_a_password_is_shown_as_it_is(toml):
    for url in ("postgresql:///veil?host=/run/postgresql", "postgresql://me@db:5432/veil", "memory"):
        assert shown_value(load_settings({}, {"VEIL_STORE": url}).store) == url


@pytest.mark.parametrize("service", ["VEIL", "VEIL_HEADLESS", "VEIL_HTTP"])
def test_variables_that_kubernetes_makes_for_services_beside_the_pod_are_ignored(toml, service: str):
    environ = {
        f"{service}_PORT": "tcp://10.0.0.1:9324",
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "9324",
        f"{service}_SERVICE_PORT_SQS": "9324",
        f"{service}_PORT_9324_TCP": "tcp://10.0.0.1:9324",
        f"{service}_PORT_9324_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings({}, environ).port == 9324
    with pytest.raises(ServerSettingsError, match="unknown variable VEIL_SERVICE; did you mean"):
        load_settings({}, {"VEIL_SERVICE": "x"})


def test_a_file_that_begins_with_a_byte_order_mark_is_read(toml, tmp_path: Path):
    (tmp_path / "marked.toml").write_text("port = 9400\n", encoding="utf-8-sig")
    assert load_settings({}, {}, str(tmp_path / "marked.toml")).port == 9400


@pytest.mark.parametrize("name", ["data", "journal", "keys_file"])
def test_the_home_of_a_user_who_does_not_exist_is_refused_in_one_line(toml, name: str):
    with pytest.raises(ServerSettingsError, match=f"{name}='~nosuch/x' .*: expected .*path"):
        load_settings({name: "~nosuch/x"}, {})


def test_a_config_file_in_the_home_of_a_user_who_does_not_exist_is_refused_in_one_line(toml):
    with pytest.raises(ServerSettingsError, match="config=~nosuch/x: expected a file that exists"):
        load_settings({}, {}, "~nosuch/x")


def test_settings_made_in_python_are_checked_the_same_way():
    assert Settings(port=1).port == 1
    with pytest.raises(ServerSettingsError, match="port=-1: expected a whole number"):
        Settings(port=-1)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("memory://", "memory"), ("memory", "memory"), ("sqlite", "sqlite"), ("sqlite:///a/b", "sqlite:///a/b")],
)
def test_stores_have_a_short_form(given, kept):
    assert Settings(store=given).store == kept


def test_keys_come_from_text_or_tables_and_default_to_the_servers_account(toml):
    toml('account = "222222222222"\n[[keys]]\nid = "a"\nsecret = "s"\n')
    assert load_settings({}, {}).keys == (AccessKey("a", "s", "222222222222"),)
    settings = load_settings({}, {"VEIL_KEYS": "b:t:333333333333, c:u/+"})
    assert [(key.key_id, key.account) for key in settings.keys] == [
        ("b", "333333333333"),
        ("c", "222222222222"),
    ]


def test_a_keys_file_must_be_for_its_owner_alone(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# ours\n\na:s\nb:t:333333333333\n")
    settings = Settings(keys_file=file, keys="c:u")
    file.chmod(0o640)
    with pytest.raises(ServerSettingsError, match=r"only its owner can read .*0640"):
        gather_keys(settings)
    file.chmod(0o600)
    assert list(gather_keys(settings)) == ["c", "a", "b"]


@pytest.mark.parametrize("content", ["", "a", "a:s\na:t", "a:s:12"])
def test_a_keys_file_that_says_nothing_or_nonsense_is_refused(tmp_path: Path, content: str):
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(content)
    with pytest.raises(ServerSettingsError, match="keys_file="):
        gather_keys(Settings(keys_file=file))


def test_a_keys_file_that_is_too_large_is_refused_instead_of_cut(tmp_path: Path):
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text("".join(f"KEY{number:06}:{'s' * 40}\n" for number in range(22_000)))
    with pytest.raises(ServerSettingsError, match="expected a file of at most 1,048,576 bytes"):
        gather_keys(Settings(keys_file=file))


def test_a_missing_keys_file_is_refused(tmp_path: Path):
    with pytest.raises(ServerSettingsError, match="No such file"):
        gather_keys(Settings(keys_file=tmp_path / "none"))


def test_declared_queues_carry_what_was_written_and_dead_letters_come_first(toml):
    toml(
        """
        [queues.orders]
        visibility_timeout = "5m"
        retention = "4d"
        delay = 3
        dead_letter = "orders-dead"
        max_receives = 4
        tags = { team = "shop" }
        [queues.events]
        fifo = true
        content_deduplication = true
        dead_letter = "spent"
        max_receives = 2
        """
    )
    queues = {queue.name: queue for queue in load_settings({}, {}).queues}
    assert list(queues) == ["orders-dead", "orders", "spent.fifo", "events.fifo"]
    assert queues["orders"].given == {"visibility_s": 300, "retention_s": 345_600, "delay_s": 3}
    assert (queues["orders"].dead_letter, queues["orders"].receives_max) == ("orders-dead", 4)
    assert queues["orders"].tags == {"team": "shop"}
    assert queues["events.fifo"].given == {"fifo": True, "content_deduplication": True}
    assert queues["spent.fifo"].given == {"fifo": True}


def test_the_table_names_every_setting_once_with_help():
    rows = settings_table()
    assert len({info.name for info in rows}) == len({info.variable for info in rows}) == len(rows)
    assert all(info.help.endswith(".") for info in rows)
    # Arguments can be seen by everybody.
    assert not [info for info in rows if info.is_secret and info.has_flag]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_told(toml):
    toml("port = 1").chmod(0)
    assert "expected a TOML file that can be read" in refusal()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
@pytest.mark.parametrize(
    ("text", "secret"),
    [('[[keys]]\nid = "a"\nsecret = "s"\n', "keys"), ('store = "postgresql://u:pw@h/d"\n', "store")],
)
def test_a_file_with_secrets_that_others_can_read_is_refused(toml, text: str, secret: str, mode: int):
    path = toml(text)
    path.chmod(mode)
    said = refusal()
    assert "config=veil.toml: expected a file that only its owner can read (chmod 600)" in said
    assert f"because of its {secret}; its mode is {mode:04o}" in said
    assert "pw" not in said
    path.chmod(0o600)
    load_settings({}, {})
    toml('region = "eu-west-1"\nstore = "postgresql://u@h/d"\n').chmod(0o644)
    load_settings({}, {})
