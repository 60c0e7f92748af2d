"""Apicurio Registry in a process of its own, its schemas in memory: Confluent's clients take it for theirs."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from httpx2 import HTTPError

from loadtest.bench.toolchain import copy_jars, need_java
from loadtest.harness import NotAvailableError
from tests.support import processes

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "registry"
NAME = "apicurio-registry-app-2.6.13.Final"
SHA256 = "d88014c1addff1fc585e1e9510fc41276473726340f4e0997353b46342d3532b"

_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1")


def prepare() -> Path:
    """Fetch the registry unless that was done, and return its archive; raises NotAvailableError."""
    need_java()
    CACHE.parent.mkdir(exist_ok=True)
    with (CACHE.parent / "registry.lock").open("w") as lock:
        # Tests in several processes ask at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        copy_jars(HERE / "pom.xml", CACHE)
    archive = CACHE / f"{NAME}-all.zip"
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise NotAvailableError(f"{archive} is not the one whose SHA-256 stands here")
    return archive


@contextlib.contextmanager
def running(directory: Path) -> Iterator[str]:
    """Give the URL of a registry without schemas, whose program is unpacked into a directory."""
    with zipfile.ZipFile(prepare()) as archive:
        archive.extractall(directory)
    port = processes.free_port()
    command = ["java", *_FLAGS, f"-Dquarkus.http.port={port}", "-jar", f"{NAME}-runner.jar"]
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            processes.dying_with_tests(command),
            cwd=directory,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"QUARKUS_LOG_LEVEL": "WARN"},
        )
    try:
        processes.wait_until(lambda: _answers(url), "the registry", 120)
        yield url
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with SchemaRegistryClient({"url": url, "max.retries": 0}) as client:
            return bool(client.get_subjects() == [])
    except (OSError, HTTPError, SchemaRegistryError):
        return False
