"""A log in the middle of its life, as the scripts of compaction see it: entries, state and index, made by hand."""

from __future__ import annotations

from typing import Any

from tests.lua.support import ABORTED, CLEAN, INDEX, STATE, STREAM, TOPIC_ID, run
from tests.support.partition_state import change_log


class DirtyLog:
    """Forty entries of a record each, offsets 1 to 40 (ids 0-1 to 0-40), an index row after every tenth of them."""

    def __init__(self, client: Any) -> None:
        self.client = client
        for offset in range(1, 41):
            client.execute_command(
                "XADD", STREAM, f"0-{offset}", "key", f"k{offset % 7}", "value", f"v{offset}"
            )
        client.hset(STATE, "topic", TOPIC_ID)
        change_log(client, STATE, next_offset=41, first=1, size_bytes=4000, records=40, largest=400)
        for count in (10, 20, 30):
            client.zadd(INDEX, {f"{count}:{count * 100}:{count * 10}:{count * 10}": count + 1})

    def begin(self, token: str, wanted: int, known_end: int = 0) -> list[Any]:
        args = [TOPIC_ID, token, known_end, wanted]
        answer: list[Any] = run(self.client, "compaction/begin", (STATE, INDEX, *CLEAN), args)
        return answer

    def write(self, token: str, *offsets: int, which: int = 0, after: str = "") -> int:
        args: list[Any] = [TOPIC_ID, token, after or token]
        for offset in offsets:
            args += (f"0-{offset}", 4, "key", "k", "value", f"v{offset}")
        answer: int = run(self.client, "compaction/write", (STATE, CLEAN[which]), args)
        return answer

    def switch(
        self,
        token: str,
        clean_end: int,
        *rows: tuple[int, int, int, int, int],
        which: int = 0,
        kept: tuple[int, int, int] = (0, 0, -1),
        history: str = "",
        tombstones: bool = False,
        markers_end: int = 0,
    ) -> int:
        args = [TOPIC_ID, token, which, clean_end, *kept, history, "tombstones" if tombstones else ""]
        args.append(markers_end)
        args += [number for row in rows for number in row]
        answer: int = run(self.client, "compaction/switch", (STATE, INDEX, *CLEAN, ABORTED), args)
        return answer

    def give_up(self, token: str) -> int:
        answer: int = run(self.client, "compaction/give_up", (STATE, *CLEAN), [TOPIC_ID, token])
        return answer

    def free(self, bits: int = 10, limit: int = 100, bytes_max: int = 1 << 20) -> list[int]:
        args = [TOPIC_ID, bits, limit, bytes_max]
        answer: list[int] = run(self.client, "compaction/free", (STREAM, STATE), args)
        return answer

    def state(self) -> dict[str, str]:
        held = self.client.hgetall(STATE).items()
        return {name.decode(): value.decode() for name, value in held if name != b"log"}

    def index(self) -> dict[int, str]:
        return {int(score): row.decode() for row, score in self.client.zrange(INDEX, 0, -1, withscores=True)}

    def clean(self, which: int) -> list[int]:
        return [int(entry_id.split(b"-")[1]) for entry_id, _ in self.client.xrange(CLEAN[which])]
