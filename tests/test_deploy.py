"""What stands in deploy/ and Containerfile is well-formed, fits Veil as it is, and says what it means.

Containers and clusters cannot be started here: images and manifests are checked by the linters and schemas made for them, the
rules of Prometheus by promtool on invented series, and every metric that a rule or a panel names by a real server.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from contextlib import ExitStack
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.faults.client import Client, queue_counts
from tests.faults.postgres_kit import create_database, is_served
from tests.faults.postgres_promotions import STANDBY_SETTINGS, dsn_of, follow
from tests.faults.server_process import ServerProcess
from tests.ports import free_port
from tests.postgres_server import PostgresServer, why_no_server
from tests.tls_kit import Authority
from veil.server.settings import load_settings
from veil.testing.process import VeilServer

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PLACE = DEPLOY / "compose"
VALUES = {"POSTGRES_PASSWORD": "hunter2", "VEIL_KEYS": "AKIDSHOP:secret"}


@pytest.fixture
def compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((PLACE / "compose.yaml").read_text(encoding="utf-8"))
    return content


def filled(text: str) -> str:
    """The text as compose would fill it in."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: VALUES[found[1]], text)


def image_environment() -> dict[str, str]:
    """What the image itself tells Veil."""
    return dict(re.findall(r"(VEIL_\w+)=(\S+)", (ROOT / "Containerfile").read_text()))


def tool(name: str) -> str:
    """A program that .ci/run installs."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    return found or pytest.skip(f"{name} is not installed")


def run(*command: str | Path, **more: Any) -> str:
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    assert done.returncode == 0, done.stdout
    return done.stdout


# ---- compose


def test_two_nodes_share_one_database_and_know_both_of_its_servers(compose: dict[str, Any]) -> None:
    nodes = [service for name, service in compose["services"].items() if name.startswith("veil")]
    assert len(nodes) == 2
    assert len({tuple(node["ports"]) for node in nodes}) == 2
    for node in nodes:
        environment = image_environment() | {
            name: filled(value) for name, value in node["environment"].items()
        }
        settings = load_settings({}, environment)
        assert "@primary,standby/veil?target_session_attrs=read-write" in settings.store
        assert (settings.host, len(settings.keys)) == ("0.0.0.0", 1)
        pytest.importorskip("psycopg")
        from veil.stores.postgres.connection import parse_dsn

        parse_dsn(settings.store)


def test_services_that_are_waited_for_exist_and_say_when_they_are_ready(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            assert name in services
            # A node's own check stands in its image.
            tells = "healthcheck" in services[name] or "build" in services[name]
            assert how["condition"] == "service_completed_successfully" or tells
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (PLACE / source).exists()


def test_the_standby_is_waited_for_under_the_name_that_it_follows_by(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert "application_name=standby" in services["standby"]["command"][-1]
    assert any("FIRST 1 (standby)" in word for word in services["synchronous"]["command"])


def test_the_scripts_are_shell(compose: dict[str, Any]) -> None:
    follow = compose["services"]["standby"]["command"][-1].replace("$$", "$")
    for script in (follow, (PLACE / "let-the-standby-in.sh").read_text()):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_value_that_must_be_given_is_in_the_readme(compose: dict[str, Any]) -> None:
    wanted = set(re.findall(r"\$\{(\w+):\?", (PLACE / "compose.yaml").read_text()))
    assert wanted == set(VALUES)
    readme = (PLACE / "README.md").read_text()
    assert all(f"{name}=" in readme for name in wanted)


def test_the_balancer_asks_each_node_whether_it_is_ready(compose: dict[str, Any]) -> None:
    text = (PLACE / "haproxy.cfg").read_text()
    nodes = {name for name in compose["services"] if name.startswith("veil")}
    assert set(re.findall(r"^  server (\w+) (?=\1:9324$)", text, re.M)) == nodes
    assert "option httpchk GET /readyz" in text
    run(tool("haproxy"), "-c", "-f", PLACE / "haproxy.cfg")


@pytest.mark.slow
@pytest.mark.skipif(why_no_server() is not None, reason=str(why_no_server()))
def test_the_set_serves_through_its_balancer_whichever_node_or_database_dies(tmp_path: Path) -> None:
    """The compose file's services as processes: two nodes, a primary and its synchronous standby, and the balancer's own file."""
    balancer_port, haproxy = free_port(), tool("haproxy")
    with PostgresServer(settings=STANDBY_SETTINGS) as primary, ExitStack() as stack:
        standby = PostgresServer(settings=STANDBY_SETTINGS)
        stack.callback(standby.remove)
        create_database(primary)
        follow(standby, primary)
        nodes = []
        for name in ("veil1", "veil2"):
            (tmp_path / name).mkdir()
            store = ("--store", dsn_of(primary, standby))
            nodes.append(ServerProcess(tmp_path / "data", tmp_path / name, arguments=store))
            stack.enter_context(nodes[-1])
        rules = (PLACE / "haproxy.cfg").read_text().replace("bind :9324", f"bind 127.0.0.1:{balancer_port}")
        for name, node in zip(("veil1", "veil2"), nodes, strict=True):
            rules = rules.replace(f"{name}:9324", f"127.0.0.1:{node.port}")
        (tmp_path / "haproxy.cfg").write_text(rules)
        balancer = subprocess.Popen([haproxy, "-db", "-f", tmp_path / "haproxy.cfg"])
        stack.callback(balancer.wait)
        stack.callback(balancer.kill)

        async def sends_until_served() -> None:
            client = Client(balancer_port, retry_s=5.0)
            try:
                while not await is_served(client, "jobs"):
                    await asyncio.sleep(0.05)
            finally:
                client.close()

        async def break_it() -> None:
            direct = Client(nodes[0].port)
            await direct.call("CreateQueue", QueueName="jobs")
            direct.close()
            await sends_until_served()
            nodes[0].kill()
            await sends_until_served()
            await asyncio.to_thread(primary.stop, "kill")
            await asyncio.to_thread(standby.promote)
            await sends_until_served()
            await asyncio.to_thread(nodes[0].start)
            client = Client(balancer_port)
            # Every send that was acknowledged, and perhaps some whose end was unknown.
            assert (await queue_counts(client, "jobs"))[0] >= 3
            client.close()

        asyncio.run(break_it())


# ---- the image, systemd, Kubernetes


def test_the_image_runs_as_nobody_says_whether_it_is_ready_and_asks_for_keys(tmp_path: Path) -> None:
    text = (ROOT / "Containerfile").read_text()
    assert text.count("\nFROM ") + text.startswith("FROM ") == 2
    assert "\nUSER 65534:65534\n" in text
    assert "/readyz" in text.partition("HEALTHCHECK")[2]
    run(tool("hadolint"), ROOT / "Containerfile")
    run(tool("bash"), "-n", input="\n".join(re.findall(r"^RUN (.*(?:\\\n.*)*)", text, re.M)))
    environment = image_environment() | {"VEIL_DATA": str(tmp_path), "PATH": "/usr/bin:/bin"}
    veil = Path(sys.executable).with_name("veil")
    served = subprocess.run([veil, "serve"], env=environment, cwd=tmp_path, text=True, capture_output=True)
    assert served.returncode == 2
    assert "keys" in served.stderr


def test_the_health_check_of_the_image_follows_the_port_and_tls(tmp_path: Path) -> None:
    text = (ROOT / "Containerfile").read_text()
    check: list[str] = json.loads(text.partition("HEALTHCHECK")[2].partition("CMD ")[2].partition("\n")[0])
    pair = Authority(tmp_path).issue()
    for flags, variables in (((), {}), (pair.flags, {"VEIL_TLS_CERT": str(pair.cert)})):
        with VeilServer(*flags) as server:
            environment = variables | {"VEIL_PORT": str(server.port)}
            run(sys.executable, *check[1:], env=environment)
    with pytest.raises(AssertionError):  # it has stopped
        run(sys.executable, *check[1:], env=environment)


def test_the_systemd_unit_is_one_and_leaves_the_server_little_room(tmp_path: Path) -> None:
    unit = tmp_path / "veil.service"
    text = (DEPLOY / "veil.service").read_text()
    unit.write_text(text.replace("/opt/veil/bin/veil", str(Path(sys.executable).with_name("veil"))))
    # Or systemd would give it up for good after five starts that failed, within ten seconds.
    assert "\nStartLimitIntervalSec=0\n" in text and "\nRestart=on-failure\n" in text
    assert run(tool("systemd-analyze"), "verify", unit) == ""
    exposure = run(tool("systemd-analyze"), "security", "--offline=true", "--threshold=20", unit)
    assert "Overall exposure level" in exposure


@pytest.mark.parametrize("name", ["single.yaml", "nodes.yaml"])
def test_the_manifests_are_what_kubernetes_takes_and_what_veil_understands(name: str) -> None:
    import kubernetes_validate

    resources = list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))
    for resource in resources:
        kubernetes_validate.validate(resource, "1.29", strict=True)
    (workload,) = (each for each in resources if each["kind"] in ("StatefulSet", "Deployment"))
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    secrets = {"keys": "AKIDSHOP:secret", "store": "postgresql://veil:secret@db1,db2/veil"}
    given = {
        each["name"]: each["value"] if "value" in each else secrets[each["valueFrom"]["secretKeyRef"]["key"]]
        for each in container["env"]
    }
    settings = load_settings({}, image_environment() | given)
    assert settings.store.startswith("postgresql://") == (name == "nodes.yaml")
    # A Service named veil would otherwise put VEIL_PORT=tcp://… into the pod, beside the settings.
    assert pod["enableServiceLinks"] is False
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert pod["terminationGracePeriodSeconds"] > settings.stop_grace_s


def test_the_database_to_try_the_nodes_with_is_what_kubernetes_takes_and_its_scripts_run() -> None:
    import kubernetes_validate

    text = (DEPLOY / "kubernetes" / "database.yaml").read_text()
    resources = list(yaml.safe_load_all(text))
    for resource in resources:
        kubernetes_validate.validate(resource, "1.29", strict=True)
    pods = [each["spec"]["template"]["spec"] for each in resources if "template" in each.get("spec", {})]
    containers = [container for pod in pods for container in pod["containers"]]
    scripts = [each["command"][-1] for each in containers if each.get("command", ["-"])[0] == "bash"]
    scripts += [script for each in resources for script in each.get("data", {}).values()]
    assert len(scripts) == 3
    for script in scripts:
        run(tool("bash"), "-n", input=script)
    # What the secret's DSN names are the Services, and the standby is waited for under the name that it follows by.
    services = [each["metadata"]["name"] for each in resources if each["kind"] == "Service"]
    assert f"@{','.join(services)}/veil?" in text
    assert "application_name=standby" in text and "FIRST 1 (standby)" in text


# ---- what watches it


def test_the_alert_rules_fire_in_trouble_and_only_then() -> None:
    rules = DEPLOY / "prometheus"
    run(tool("promtool"), "check", "rules", rules / "alerts.yaml")
    run(tool("promtool"), "test", "rules", rules / "alerts_test.yaml", cwd=rules)


def test_every_metric_that_a_rule_or_a_panel_names_is_one_that_veil_tells(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    with VeilServer(*data) as server, urllib.request.urlopen(f"{server.endpoint_url}/metrics") as answer:
        page = answer.read().decode()
    run(tool("promtool"), "check", "metrics", input=page)
    told = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\S+)", page, re.M)}
    of_postgresql = {"veil_database_waiting"}
    for path in (DEPLOY / "prometheus" / "alerts.yaml", DEPLOY / "grafana" / "veil.json"):
        named = set(re.findall(r"\bveil_[a-z_]+", path.read_text()))
        assert len(named) > 5
        assert {re.sub("_(total|bucket|sum|count)$", "", name) for name in named} <= told | of_postgresql


def test_the_dashboards_panels_ask_prometheus_something_it_can_answer(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "veil.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 15
    variables = {"$queue": ".*", "$instance": ".*", "$__rate_interval": "5m"}
    rules = []
    for place, expression in enumerate(expressions):
        for name, value in variables.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        rules.append({"record": f"panel:{place}", "expr": expression})
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    run(tool("promtool"), "check", "rules", tmp_path / "panels.yaml")


# ---- wheel and sdist


def built(kind: str, into: Path, source: Path = ROOT) -> Path:
    run(sys.executable, "-P", "-m", "hatchling", "build", "-t", kind, "-d", into, cwd=source)
    (made,) = into.iterdir()
    return made


def test_the_wheel_and_the_sdist_hold_what_veil_needs_and_nothing_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(built("wheel", tmp_path / "wheel")) as wheel:
        in_wheel = {name for name in wheel.namelist() if name.startswith("veil/")}
        others = {name.split("/")[0] for name in wheel.namelist()} - {"veil"}
    tracked = run("git", "ls-files", "veil", cwd=ROOT).splitlines()
    assert in_wheel == set(tracked)
    assert all(name.endswith(".dist-info") for name in others)
    with tarfile.open(built("sdist", tmp_path / "sdist")) as sdist:
        in_sdist = {name.partition("/")[2] for name in sdist.getnames()}
    assert set(tracked) | {"README.md", "LICENSE", "pyproject.toml"} <= in_sdist
    assert not any(name.startswith(("tests/", "bench/", ".")) for name in in_sdist - {".gitignore"})


def needed_by(package: str) -> dict[str, Distribution]:
    """What the package needs to run, and what that needs, as it is installed here."""
    found: dict[str, Distribution] = {}
    waiting = [package]
    while waiting:
        for line in distribution(waiting.pop()).requires or ():
            needed = Requirement(line)
            if needed.name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
                found[needed.name] = distribution(needed.name)
                assert needed.specifier.contains(found[needed.name].version), line
                waiting.append(needed.name)
    return found


def test_the_wheel_of_the_sdist_beside_what_it_needs_and_no_more_tells_the_life_of_a_message(
    tmp_path: Path,
) -> None:
    """Nothing is fetched: an empty environment is given links to the packages that the wheel says it needs."""
    with tarfile.open(built("sdist", tmp_path / "sdist")) as sdist:
        sdist.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = built("wheel", tmp_path / "wheel", unpacked)
    venv.create(tmp_path / "empty", symlinks=True, with_pip=False)
    beside, (packages,) = tmp_path / "empty" / "bin", (tmp_path / "empty").glob("lib/python*/site-packages")
    for each in needed_by("veilmq").values():
        for top in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(each.locate_file(top))
    into = ("--python", beside / "python", "install", "--quiet", "--no-deps", "--no-index")
    run(sys.executable, "-m", "pip", "--disable-pip-version-check", *into, wheel)
    told = run(
        beside / "veil", "demo", "life", cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    )
    assert re.search(r"\d+ claims held", told), told
