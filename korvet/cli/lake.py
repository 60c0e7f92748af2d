"""`korvet lake`: archives topics to Delta tables, and looks after these tables.

Knows the group; each of its commands has a file of its own. What is more than one process's work runs on Spark, in this
process by default; `spark-submit .../korvet/__main__.py lake ...` runs the same commands on a cluster.
"""

from __future__ import annotations

import click

from korvet.cli.group import Group
from korvet.cli.lake_archive import archive
from korvet.cli.lake_compact import compact
from korvet.cli.lake_expire import expire
from korvet.cli.lake_query import query
from korvet.cli.lake_replay import replay
from korvet.cli.lake_status import status
from korvet.cli.lake_verify import verify


@click.group(cls=Group)
def lake() -> None:
    """Archive topics with remote.storage.enable to Delta tables, and look after them; needs korvet[lake]."""


for each in (archive, compact, expire, query, replay, status, verify):
    lake.add_command(each)
