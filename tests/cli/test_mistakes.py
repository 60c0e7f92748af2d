"""What commands reject before they ask a broker: exit code 2, the reason on stderr, nothing on stdout."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.commands import refused

# A line, and after an arrow what is said of it where the words matter.
MISTAKES = """
acls add --topic a -> --allow-principal or --deny-principal
acls add --allow-principal User:alice -> Name a resource
acls remove --yes -> Name a resource
acls add --topic a --allow-principal alice -> 'alice' is not TYPE:NAME
acls add --topic a --allow-principal User:alice --operation fly -> 'fly' is not one of
acls add --topic a --allow-principal User:alice --consumer -> --consumer needs
acls add --group a --allow-principal User:alice --producer -> --producer needs
acls add --topic a --allow-principal User:alice --idempotent -> --idempotent goes with
config --set workers -> --set takes NAME=VALUE
config surplus
configs alter --set a=1
configs alter --topic a
configs alter --topic a --append a=1 --subtract a=1
configs alter --topic a --set a=1 --delete a
configs alter --topic a --set novalue
configs describe
configs describe --broker -1
configs describe --broker x
consume a --format %s --json
consume a --format %x
consume a --format 100%
consume a --long --json
consume a -n 0
consume a -o 1960-01-01
consume a -o 5 -g g
consume a -o 99999999999999999999
consume a -o yesterday
consume a -p 0 -g g
features set -> Missing argument
features set a -> set takes NAME=VALUE, not 'a'
features set a=1 --downgrade quick -> 'quick' is not one of
features set a=1 a=2 -> twice
features set a=32768 -> 32768 is not in the range
features set a=x -> 'x' is not a valid integer
groups delete
groups describe
groups describe a --all-groups
groups list --state Emtpy -> 'Emtpy' is none of PreparingRebalance, CompletingRebalance, Stable, Dead, Empty
groups list --timeout 0
groups list --timeout nan -> Invalid value for '--timeout': nan is no number of seconds
groups list -b ,
groups list -b host:port
groups list surplus
groups reset-offsets a --all-topics
groups reset-offsets a --all-topics --by-duration 1D
groups reset-offsets a --all-topics --by-duration P
groups reset-offsets a --all-topics --by-duration P1DT
groups reset-offsets a --all-topics --by-duration P1H
groups reset-offsets a --all-topics --by-duration P9999999999D
groups reset-offsets a --all-topics --by-duration PT
groups reset-offsets a --all-topics --to-datetime 1969-12-31T00:00:00
groups reset-offsets a --all-topics --to-datetime yesterday
groups reset-offsets a --all-topics --to-earliest --to-latest
groups reset-offsets a --all-topics --to-offset -1
groups reset-offsets a --all-topics --to-offset 0 --shift-by 0
groups reset-offsets a --all-topics --to-timestamp soon
groups reset-offsets a --to-earliest
groups reset-offsets a --to-earliest --topic a --all-topics
groups reset-offsets a --to-latest --topic ''
groups reset-offsets a --to-latest --topic :0
groups reset-offsets a --to-latest --topic a:
groups reset-offsets a --to-latest --topic a:-1
groups reset-offsets a --to-latest --topic a:0 --topic a:1
groups reset-offsets a --to-latest --topic a:1,
groups reset-offsets a --to-latest --topic a:2147483648
groups reset-offsets a --to-latest --topic a:x
produce a --acks 1 --idempotence
produce a --acks 2
produce a --json --keep-partitions -p 1
produce a --json --key k
produce a --json --null x
produce a --json -K:
produce a --keep-partitions
produce a --key k -K:
produce a --whole -0
produce a --whole -K:
produce a -H no-value
produce a -K ''
produce a -p -1
produce a -z zip
quotas alter --entity-type topics -> 'topics' is not one of
quotas alter --entity-type users --entity-default -> give --set or --delete
quotas alter --entity-type users --entity-default --set a=1 --delete a -> one way only
quotas alter --entity-type users --entity-default --set a=nan -> nan is not a number
quotas alter --entity-type users --entity-default --set a=x -> x is not a number
quotas alter --entity-type users --entity-type users -> each type once
quotas alter --entity-type users --set a=1 -> one --entity-name or --entity-default for each
quotas alter --set producer_byte_rate=1 -> give --entity-type
serve --liste x
topics alter a
topics alter a -c a=1 -d a
topics create
topics create a --partitions 0
topics create a --partitions 1 --replica-assignment 0
topics create a --replica-assignment 0,,1
topics create a --replication-factor 0
topics create a -c a=1 -c a=2
topics create a -c novalue
topics delete
topics describe
topics describe a --all-topics
topics elect-leaders
topics elect-leaders a --all-topics
topics elect-leaders a:x
topics list surplus
topics reassign
topics reassign --file not-there
topics reassign --list a:0=1
topics reassign a:0=
topics reassign a:0=1 a:0=2
topics reassign a:0=x
topics reassign a=1
topicz list -> Error: No such command 'topicz'. Did you mean 'topics'?
"""


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_a_mistake_in_the_flags_ends_with_exit_code_2(mistake: str) -> None:
    line, _, said = mistake.partition(" -> ")
    assert said in refused(*shlex.split(line))


@pytest.mark.parametrize("targets", [[], ["--shift-by", "5", "--to-latest"]])
def test_the_targets_of_a_reset_are_named_in_the_order_of_the_help(targets: list[str]) -> None:
    message = refused("groups", "reset-offsets", "billing", "--all-topics", *targets)
    flags = ("--to-earliest", "--to-latest", "--to-offset", "--to-datetime", "--to-timestamp")
    expected = ", ".join((*flags, "--by-duration", "--shift-by"))
    assert message.endswith(f"Error: give one of {expected}\n")
