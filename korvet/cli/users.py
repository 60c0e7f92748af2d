"""`korvet users`: lists, sets and deletes users who log in by SCRAM or PLAIN, and creates the first one.

No password is an argument: other users of a machine see those in the list of its processes.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from korvet.admin.client import AdminClient
from korvet.admin.users import ITERATIONS_DEFAULT
from korvet.cli.config import Loader, with_configuration
from korvet.cli.options import AdminGroup, Command, add_options, option, yes_option
from korvet.cli.output import confirm, printable, printed_json
from korvet.cli.tables import print_result, texts
from korvet.config.settings import Settings
from korvet.errors import ConfigError, KafkaError
from korvet.protocol.types import ScramMechanism

if TYPE_CHECKING:
    from korvet.security.credentials import UserCredentials

_MECHANISMS = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism if mechanism}


def _chosen(
    _context: click.Context, _parameter: click.Parameter, names: Sequence[str]
) -> list[ScramMechanism]:
    return [_MECHANISMS[name] for name in names] or list(_MECHANISMS.values())


_CREDENTIAL = texts("user", "mechanism", "iterations")
_mechanism_option = option(
    "-m, --mechanism",
    "Only for this mechanism; may be repeated. Default: both.",
    click.Choice(tuple(_MECHANISMS)),
    name="mechanisms",
    multiple=True,
    callback=_chosen,
)


def _password_options(command: Command) -> Command:
    return add_options(
        command,
        _mechanism_option,
        option(
            "--password-file FILE",
            "File whose first line is the password, - for standard input. Without it the terminal asks.",
            click.File(encoding="utf-8"),
        ),
        option(
            "--iterations N",
            "How often the password is hashed.",
            click.IntRange(4096, 16384),
            default=ITERATIONS_DEFAULT,
        ),
    )


@click.group(cls=AdminGroup)
def users() -> None:
    """List, set and delete users who log in by SCRAM or PLAIN; of any Kafka cluster."""


@users.command("list")
def list_users(admin: AdminClient) -> None:
    """List the users that have SCRAM credentials."""
    credentials = [
        {"user": user, "mechanism": mechanism.sasl_name, "iterations": iterations}
        for user, mechanisms in sorted(admin.users.list().items())
        for mechanism, iterations in mechanisms.items()
    ]
    print_result(credentials, _CREDENTIAL, empty="no users")


@users.command("set-password")
@click.argument("user")
@_password_options
def set_password(
    admin: AdminClient,
    user: str,
    mechanisms: list[ScramMechanism],
    password_file: IO[str] | None,
    iterations: int,
) -> None:
    """Create a user, or change a user's password."""
    password = _password(password_file)
    for mechanism in mechanisms:
        admin.users.set_password(user, password, mechanism, iterations=iterations)
    _done("set the password of", user, mechanisms)


@users.command()
@click.argument("user")
@_mechanism_option
@yes_option
def delete(admin: AdminClient, user: str, mechanisms: list[ScramMechanism], *, yes: bool) -> None:
    """Delete a user's credentials. Clients that are logged in stay until they have to log in again."""
    mechanisms = [mechanism for mechanism in admin.users.list().get(user, {}) if mechanism in mechanisms]
    if not mechanisms:
        raise click.ClickException(printable(f"{user} has no such credential"))
    confirm(f"Delete the credentials of {printable(user)}?", "nothing is deleted", yes=yes)
    for mechanism in mechanisms:
        admin.users.delete(user, mechanism)
    _done("deleted", user, mechanisms)


@click.command()
@click.argument("user")
@with_configuration
@_password_options
@option("--replace", "Change the password if the user exists.")
def bootstrap(
    load: Loader,
    user: str,
    mechanisms: list[ScramMechanism],
    password_file: IO[str] | None,
    iterations: int,
    *,
    replace: bool,
) -> None:
    """Create the first user, where no client can log in yet: in Redis itself, or in the data directory.

    Create the first user while no client can log in yet, by writing to Redis instead of through a broker.

    Give it the flags and the environment of `korvet serve`. Brokers may run or not. Kafka's counterpart is
    `kafka-storage format --add-scram`.
    """
    settings = load().settings
    password = _password(password_file)
    with _stored(settings) as stored:
        if user in stored.iterations() and not replace:
            raise click.ClickException(printable(f"{user} exists: --replace gives it another password"))
        from korvet.security.credentials import Upsertion  # noqa: PLC0415 - other commands start without it
        from korvet.security.scram import new_salt, salt_password  # noqa: PLC0415 - the same

        changes = []
        for mechanism in mechanisms:
            salt = new_salt()
            salted = salt_password(mechanism, password, salt, iterations)
            changes.append(Upsertion(mechanism, iterations, salt, salted))
        stored.alter(user, changes)
    _done("created", user, mechanisms)


@contextlib.contextmanager
def _stored(settings: Settings) -> Iterator[UserCredentials]:
    """Give the users of a broker with these settings; errors end the command with one line."""
    with contextlib.ExitStack() as cleanup:
        # Before gevent is loaded: what forks has one thread.
        url = settings.redis_url or _embedded_url(settings, cleanup)
        from korvet.redis.client import Redis  # noqa: PLC0415 - other commands start without gevent
        from korvet.redis.keys import Keys  # noqa: PLC0415 - the same
        from korvet.security.credentials import UserCredentials  # noqa: PLC0415 - the same

        client = Redis(
            url, timeout_ms=settings.redis_timeout_ms, connect_timeout_ms=settings.redis_connect_timeout_ms
        )
        cleanup.callback(client.close)
        try:
            yield UserCredentials(client, Keys(settings.namespace))
        except KafkaError as error:
            raise click.ClickException(printable(error.message)) from error


def _embedded_url(settings: Settings, cleanup: contextlib.ExitStack) -> str:
    from korvet.redis.url import running_url  # noqa: PLC0415 - other commands start without it
    from korvet.server import embedded  # noqa: PLC0415 - the same

    path = Path(settings.data_dir)
    try:
        directory = embedded.open_locked(path)
    except ConfigError:
        # A broker may run on it.
        if (url := running_url(path)) is None:
            raise
        return url
    cleanup.callback(directory.close)
    server = embedded.EmbeddedServer(directory, embedded.find_program(), settings.embedded_maxmemory_bytes)
    server.start(time.sleep, lambda _line: None)
    cleanup.callback(server.stop)
    return server.url


def _password(file: IO[str] | None) -> str:
    if file is not None:
        password = file.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        raise click.UsageError("there is no terminal to ask for the password: give --password-file")
    if not password:
        raise click.UsageError("the password is empty")
    return password


def _done(done: str, user: str, mechanisms: Sequence[ScramMechanism]) -> None:
    names = [mechanism.sasl_name for mechanism in mechanisms]
    if not printed_json([{"user": user, "mechanism": name, "error": None} for name in names]):
        click.echo(f"{done} {printable(user)} ({', '.join(names)})")


users.add_command(bootstrap)
