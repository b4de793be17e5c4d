"""The access keys in effect: those of the settings and those of the keys file."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from veil.server.setting_values import KEYS_EXPECTED, access_keys
from veil.server.settings import Settings, SettingsError
from veil.wire.sigv4 import AccessKey

_FILE_BYTES_MAX = 1 << 20


def gather_keys(settings: Settings) -> dict[str, AccessKey]:
    """Every key by its id; reads the keys file anew. Raises SettingsError."""
    keys = {key.key_id: key for key in settings.keys}
    if settings.keys_file is not None:
        for key in _read(settings.keys_file):
            if key.key_id in keys:
                raise SettingsError(
                    f"keys_file={settings.keys_file}: expected no id twice, found {key.key_id}"
                )
            keys[key.key_id] = replace(key, account=key.account or settings.account)
        if not keys:
            # Somebody wanted keys: an emptied file must not open the server to everybody.
            raise SettingsError(f"keys_file={settings.keys_file}: expected at least one key")
    return keys


def _read(path: Path) -> list[AccessKey]:
    try:
        with path.open("rb") as file:
            # Of the opened file, not of the path: what is checked is what is read.
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode) or mode & 0o077:
                raise SettingsError(
                    f"keys_file={path}: expected a file that only its owner can read (chmod 600), "
                    f"its mode is {stat.S_IMODE(mode):04o}"
                )
            text = file.read(_FILE_BYTES_MAX).decode("utf-8")
    except OSError as problem:
        raise SettingsError(
            f"keys_file={path}: expected a file that can be read ({problem.strerror})"
        ) from None
    except UnicodeDecodeError:
        raise SettingsError(f"keys_file={path}: expected UTF-8") from None
    keys: list[AccessKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            keys += access_keys(line)
        except ValueError:
            raise SettingsError(f"keys_file={path}, line {number}: expected {KEYS_EXPECTED}") from None
    if len({key.key_id for key in keys}) != len(keys):
        raise SettingsError(f"keys_file={path}: expected no id twice")
    return keys
