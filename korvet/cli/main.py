"""The entry of the `korvet` command: here an operator's mistake becomes one line and an exit code.

Exit codes: 0 done, 1 failed, 2 a mistake in flags or configuration, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from korvet import __version__
from korvet.cli.apis import apis
from korvet.cli.config import config
from korvet.cli.consume import consume
from korvet.cli.groups import groups
from korvet.cli.produce import produce
from korvet.cli.serve import serve
from korvet.errors import ConfigError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", message="korvet %(version)s")
def korvet() -> None:
    """Korvet: a Kafka-compatible broker that keeps its log in Redis Streams."""


korvet.add_command(serve)
korvet.add_command(config)
korvet.add_command(apis)
korvet.add_command(produce)
korvet.add_command(consume)
korvet.add_command(groups)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments`, by default the process's own; returns the exit code."""
    try:
        result = korvet.main(arguments, prog_name="korvet", standalone_mode=False)
        sys.stdout.flush()
    except ConfigError as error:
        click.echo(f"korvet: {error}", err=True)
        return 2
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # Who reads the output has gone (`korvet config | head`). The interpreter flushes stdout once more at
        # its end and would complain: give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else 0
