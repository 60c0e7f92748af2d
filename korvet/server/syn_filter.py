"""How a listening socket takes no new connection and loses none: a filter in the kernel that drops each first packet.

Knows classic BPF (Linux' socket filters, socket(7)); nothing of who listens. The kernel resets what is in the queue of
a socket that closes, and what is on its way there by then. So before one of several sockets of a port closes, no
handshake may begin on it: a client whose first packet is dropped sends it again after a second, and by then the port's
other sockets have it. Handshakes under way go on, since only their first packet carries SYN without having passed.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys

_SO_ATTACH_FILTER = 26
_LOAD_BYTE, _JUMP_IF_ANY_BIT, _RETURN = 0x30, 0x45, 0x06
_FLAGS_AT, _SYN = 13, 0x02
"""Where the flags stand in a TCP header, at which the filter of a TCP socket begins to count, and the first one's."""
_ALL = 0xFFFFFFFF
# Code, how many instructions to skip where true and where not, operand.
_PROGRAM = (
    (_LOAD_BYTE, 0, 0, _FLAGS_AT),
    (_JUMP_IF_ANY_BIT, 0, 1, _SYN),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, _ALL),
)


def begin_no_handshake(listener: socket.socket) -> None:
    """Let `listener` drop every packet that begins a connection, from now on; does nothing but on Linux."""
    if not sys.platform.startswith("linux"):
        return
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _PROGRAM)
    program = ctypes.create_string_buffer(code, len(code))
    # A kernel that takes no filter leaves things as they are without.
    with contextlib.suppress(OSError):
        described = struct.pack("@HP", len(_PROGRAM), ctypes.addressof(program))
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)
