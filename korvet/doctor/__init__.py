"""What `korvet doctor` examines: Redis, the machine, addresses and settings of one broker, running or not.

Each part yields findings and changes nothing but a probe key in Redis, as a start does; none needs another.
What clients altered is read only from a Redis without an error.
"""

from __future__ import annotations

from collections.abc import Iterator

from korvet.config.listeners import wanted_listeners
from korvet.config.sources import BrokerConfig
from korvet.doctor import addresses, machine, redis_server
from korvet.doctor import settings as settings_checks
from korvet.doctor.settings import LakeProblem
from korvet.server.finding import Finding, Level
from korvet.server.supervisor import checks


def examine(configuration: BrokerConfig, lake_problem: LakeProblem) -> Iterator[Finding]:
    """Yield what is found, part by part; `lake_problem` tries to write to the lake."""
    settings = configuration.settings
    in_redis = list(redis_server.examine(settings))
    yield from in_redis
    yield from settings_checks.examine(settings)
    if not any(finding.what == "redis" and finding.level is Level.ERROR for finding in in_redis):
        yield from settings_checks.examine_altered(configuration)
    yield from checks.examine(settings, wanted_listeners(settings.listeners, settings.listen))
    yield from addresses.examine(settings)
    yield from machine.examine(settings)
    yield from settings_checks.examine_console(settings)
    yield from settings_checks.examine_lake(settings, lake_problem)
