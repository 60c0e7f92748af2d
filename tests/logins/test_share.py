"""franz-go reads as a member of a share group (KIP-932): what it releases comes again, what it accepts does not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.jvm.share import configure, send
from tests.support import reading
from tests.support.broker import korvet_broker
from tests.support.records import topic_name

HERE = Path(__file__).parent
PARTITIONS, RECORDS = 3, 60
SECONDS_MAX = 60


def expected(number: int) -> list[str]:
    """Return what the program says of a record."""
    if number % 10 == 5:
        return [f"rejected {number} 1"]
    if number % 2:
        return [f"released {number} 1", f"accepted {number} 2"]
    return [f"accepted {number} 1"]


def test_each_record_is_accepted_once(tmp_path: Path) -> None:
    program = str(tmp_path / "share")
    command = ["go", "build", "-mod=readonly", "-o", program, "./share"]
    subprocess.run(command, cwd=HERE, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    with korvet_broker(tmp_path, "--set", "storage.format.topics=dense*=batch") as broker:
        for kind in ("plain", "dense"):
            check(program, broker.bootstrap, topic_name(f"{kind}-share"))


def check(program: str, bootstrap: str, topic: str) -> None:
    reading.create_topic(bootstrap, topic, PARTITIONS)
    configure(bootstrap, topic, share_auto_offset_reset="earliest")
    for partition in range(PARTITIONS):
        send(bootstrap, topic, [str(item) for item in range(partition, RECORDS, PARTITIONS)], partition)
    # The second one finds that nothing of the first is left.
    for wanted in (list(range(RECORDS)), [RECORDS]):
        command = [program, bootstrap, topic, topic, str(len(wanted))]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
        assert done.returncode == 0, done
        assert sorted(done.stdout.splitlines()) == sorted(
            line for number in wanted for line in expected(number)
        )
        send(bootstrap, topic, [str(RECORDS)])
