"""What a server says when it is ready: where it is, where the data lives, who may come in, and lines to paste."""

from __future__ import annotations

from pathlib import Path

from veil.server.setting_values import without_password
from veil.server.settings import Settings


def endpoint_url(settings: Settings, host: str, port: int) -> str:
    """The address for clients on this machine, or the public one if it is set."""
    if settings.base_url is not None:
        return settings.base_url
    return address_url(settings, host, port)


def address_url(settings: Settings, host: str, port: int) -> str:
    """The address for clients on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # all addresses: one of them to show
    return f"{settings.scheme}://[{host}]:{port}" if ":" in host else f"{settings.scheme}://{host}:{port}"


def where_data_lives(store: str, directory: Path | None) -> str:
    """The store and its place, in words."""
    if store.startswith("postgresql://"):
        return f"{without_password(store)} (an answer is given only once PostgreSQL has committed it)"
    if directory is None:
        return "in memory, gone when the server stops"
    return f"{directory} ({store.partition(':')[0]}; an answer is given only once it is on disk)"


def greeting(
    settings: Settings,
    endpoint: str,
    directory: Path | None,
    key_ids: list[str],
    version: str,
    *,
    smq: str | None = None,
    certificate: str | None = None,
) -> str:
    """Lines for a person who has just started a server."""
    region = settings.region
    if key_ids:
        access = f"{len(key_ids)} access key{'s' if len(key_ids) > 1 else ''}; every request must be signed"
        key_id, secret = key_ids[0], "SECRET"
    else:
        access = "no keys: this machine only, any credentials will do"
        key_id, secret = "veil", "veil"
    smq_line = "" if smq is None else f'\n  SMQ      mns.account.Account("{smq}", "{key_id}", "{secret}")'
    workers = settings.workers
    workers_line = "" if workers == 1 else f"\n  workers  {workers}, beside one process that has the store"
    tls_line = "" if certificate is None else f"\n  TLS      {certificate}"
    console = "" if settings.console == "off" else f"\n  console  {endpoint}/console"
    return f"""\
Veil {version} is ready at {endpoint}{console}
  data     {where_data_lives(settings.store, directory)}
  access   {access}{tls_line}{workers_line}
  boto3    boto3.client("sqs", endpoint_url="{endpoint}", region_name="{region}", \
aws_access_key_id="{key_id}", aws_secret_access_key="{secret}")
  aws CLI  AWS_ACCESS_KEY_ID={key_id} AWS_SECRET_ACCESS_KEY={secret} \
aws sqs list-queues --endpoint-url {endpoint} --region {region}{smq_line}
  stop     Ctrl-C"""
