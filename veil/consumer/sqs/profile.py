"""The shared configuration files of the AWS tools: one profile's settings, as far as plain reading goes."""

from __future__ import annotations

import configparser
import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

log = logging.getLogger("veil.consumer")


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of one profile; those of the credentials file come before those of the config file."""

    name: str
    named_by_caller: bool  # not by the environment, and not for want of another
    found: bool
    settings: Mapping[str, str] = field(repr=False)
    sqs: Mapping[str, str]  # what its `services` section says about SQS


def read_profile(name: str | None = None, environ: Mapping[str, str] = os.environ) -> Profile:
    """The profile of that name, or that the environment names, or the default one; empty if there is none."""
    # In botocore's order, which may be asked for the rest of the same profile later.
    wanted = name or environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE") or "default"
    home = Path(environ.get("HOME") or "~").expanduser() / ".aws"
    config = _sections(environ.get("AWS_CONFIG_FILE"), home / "config")
    keys = _sections(environ.get("AWS_SHARED_CREDENTIALS_FILE"), home / "credentials")
    of_config = config.get(f"profile {wanted}") or (config.get("default") if wanted == "default" else None)
    of_keys = keys.get(wanted)
    settings = {**(of_config or {}), **(of_keys or {})}
    services = config.get(f"services {settings['services']}", {}) if "services" in settings else {}
    return Profile(
        wanted,
        named_by_caller=name is not None,
        found=of_config is not None or of_keys is not None,
        settings=settings,
        sqs=_nested(services.get("sqs", "")),
    )


def _sections(given: str | None, usual: Path) -> dict[str, dict[str, str]]:
    path = Path(given).expanduser() if given else usual
    # A section called DEFAULT is a section like any other here; the parser's own idea of it would leak into all.
    parser = configparser.RawConfigParser(default_section="\0")
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        # The text of the error can hold the line itself, and a line can hold a secret.
        log.warning("%s cannot be read (%s) and counts as empty", path, type(error).__name__)
        return {}
    return {_spelled(name): dict(parser[name]) for name in parser.sections()}


def _spelled(section: str) -> str:
    """The section's name with single blanks and without quotes: [profile "my own"] and [profile  x] both occur."""
    try:
        return " ".join(shlex.split(section))
    except ValueError:
        return section


def _nested(text: str) -> dict[str, str]:
    """The indented lines below a key, `name = value` each."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
