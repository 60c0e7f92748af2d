"""Runs a command of the tree to its exit code: here an operator's mistake becomes one line on stderr.

Exit codes: 0 done, 1 failed, 2 a mistake in flags or configuration, 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any

import click

from korvet.errors import ConfigError
from korvet.logs import forget_output

PROGRAM = "korvet"
DONE, FAILED, MISTAKEN, INTERRUPTED = 0, 1, 2, 130

# What stdout may answer: a full disk, a quota, a limit, a broken disk, and that it is closed.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def run(command: click.Command, arguments: Sequence[str] | None, **context: Any) -> int:  # noqa: ANN401 - as click takes it
    """Run a command line, None being the process's own, and return its exit code; `context` is for click."""
    try:
        result = command.main(arguments, prog_name=PROGRAM, standalone_mode=False, **context)
        sys.stdout.flush()
    except ConfigError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        return MISTAKEN
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads the output has gone (`korvet config | head`).
        forget_output()
        return FAILED
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        forget_output()
        click.echo(f"Error: the output cannot be written: {error.strerror}", err=True)
        return FAILED
    return result if isinstance(result, int) else DONE
