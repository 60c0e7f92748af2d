"""Regular expressions that clients send, for transactional ids (KIP-1152) and names of topics (KIP-848).

They have RE2's syntax, as in Kafka, and its bound: a match takes time in proportion to the length of the text. What RE2
would need much memory for does not compile.
"""

from __future__ import annotations

from collections.abc import Callable

import gevent
import re2

from korvet.errors import ErrorCode, KafkaError
from korvet.turns import CALLS_PER_LOOK, give_turn

PATTERN_LENGTH_MAX = 1000
"""Characters of a pattern: the most expensive ones, of Unicode's classes, take 40 ms to compile."""

LONG_ID_MIN = 250
"""Characters from which on an id is matched in a thread: RE2 leaves Python's lock meanwhile."""

_MEMORY_MAX = 1 << 15
"""Bytes of a compiled pattern with its cache: some 1,000 steps. They take 12 us for a byte of an id at most."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return what says whether all of a text matches; it gives turns. Raises KafkaError INVALID_REGULAR_EXPRESSION."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        message = f"a regular expression has at most {PATTERN_LENGTH_MAX} characters"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
    options = re2.Options()
    options.max_mem, options.never_capture, options.log_errors = _MEMORY_MAX, True, False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace")
        message = f"the pattern is no regular expression: {reason}"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from error
    finally:
        re2.purge()  # or the last 128 patterns stay in memory

    def matches(transactional_id: str) -> bool:
        if len(transactional_id) >= LONG_ID_MIN:
            return gevent.get_hub().threadpool.apply(compiled.fullmatch, (transactional_id,)) is not None
        give_turn(CALLS_PER_LOOK)
        return compiled.fullmatch(transactional_id) is not None

    return matches
