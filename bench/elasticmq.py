"""ElasticMQ for comparison: its newest release through Maven, where Java and Maven are installed and a registry answers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>veil.bench</groupId>
  <artifactId>elasticmq</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.elasticmq</groupId>
      <artifactId>elasticmq-server_2.13</artifactId>
      <version>[1.6,)</version>
    </dependency>
  </dependencies>
</project>
"""
# In memory, which is its default, and without the web page that would only cost it start-up time.
_CONFIG = """include classpath("application.conf")
node-address {{ protocol = http, host = localhost, port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
"""
_LOGGING = """<configuration>
  <appender name="STDERR" class="ch.qos.logback.core.ConsoleAppender"><target>System.err</target>
    <encoder><pattern>%d %-5level %logger{20} %msg%n</pattern></encoder></appender>
  <root level="WARN"><appender-ref ref="STDERR"/></root>
</configuration>
"""
_DOWNLOAD_TIMEOUT_S = 300


class NotAvailable(Exception):
    """This contender cannot be had here; the text says why."""


def fetch(cache: Path) -> str:
    """Have the jars in the cache, and say which version they are; raises NotAvailable."""
    if shutil.which("java") is None:
        raise NotAvailable("no java on the path")
    if not (cache / "complete").exists():
        _download(cache)
    (server,) = (cache / "lib").glob("elasticmq-server_*.jar")
    return server.stem.rpartition("-")[2]


def _download(cache: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotAvailable("no mvn on the path")
    shutil.rmtree(cache / "lib", ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "pom.xml").write_text(_POM)
    command = [maven, "-B", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib"]
    try:
        subprocess.run(
            command, cwd=cache, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise NotAvailable(f"Maven did not finish within {_DOWNLOAD_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as failure:
        said = [line for line in (failure.stdout + failure.stderr).splitlines() if "ERROR" in line]
        raise NotAvailable(
            f"Maven could not fetch it: {said[0][:120] if said else 'it did not say why'}"
        ) from None
    (cache / "complete").touch()


def command(cache: Path, port: int) -> list[str]:
    """The command that starts it, empty and in memory, on that port."""
    config, logging = cache / f"elasticmq-{port}.conf", cache / "logback.xml"
    config.write_text(_CONFIG.format(port=port))
    logging.write_text(_LOGGING)
    return [
        "java",
        f"-Dconfig.file={config}",
        f"-Dlogback.configurationFile={logging}",
        "-cp",
        f"{cache / 'lib'}/*",
        "org.elasticmq.server.Main",
    ]
