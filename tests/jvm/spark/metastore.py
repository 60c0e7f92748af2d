"""A Hive metastore with a thrift server, of the jars that PySpark brings, on a Derby of its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pyspark

from tests.support.processes import free_port, logged, wait_until

_SECONDS_MAX = 120.0
_CLASS = "org.apache.hadoop.hive.metastore.HiveMetaStore"
_SITE = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name>
<value>jdbc:derby:;databaseName={directory}/metastore_db;create=true</value></property>
<property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
<property><name>hive.metastore.schema.verification</name><value>false</value></property>
<property><name>hive.metastore.warehouse.dir</name><value>{directory}/warehouse</value></property>
<property><name>hive.async.log.enabled</name><value>false</value></property>
</configuration>
"""


@contextlib.contextmanager
def metastore(directory: Path) -> Iterator[str]:
    """Start one, with what it writes in `directory`, and end it after the block; gives its URI."""
    (directory / "hive-site.xml").write_text(_SITE.format(directory=directory))
    jars = Path(pyspark.__file__).with_name("jars")
    port = free_port()
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += [f"--add-opens=java.base/java.{item}=ALL-UNNAMED" for item in ("lang", "net")]
    command += ["-cp", f"{directory}:{jars}/*", _CLASS, "-p", str(port)]
    log = directory / "metastore.log"
    with logged(command, log, cwd=directory) as process:

        def listens() -> bool:
            assert process.poll() is None, log.read_text()
            with socket.socket() as tried:
                return not tried.connect_ex(("127.0.0.1", port))

        wait_until(listens, "the metastore listens", _SECONDS_MAX)
        yield f"thrift://127.0.0.1:{port}"
