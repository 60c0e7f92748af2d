"""The admin client: all requests to a cluster, grouped by subject.

>>> from korvet.admin import AdminClient
>>> with AdminClient("127.0.0.1:9092") as admin:
...     groups = admin.groups.list()
>>> [group.state for group in groups if group.group_id == "billing"]
['Empty']
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Self

from korvet.admin.cluster import Cluster, Partitions
from korvet.admin.configs import Configs
from korvet.admin.groups import Groups
from korvet.admin.offsets import Offsets
from korvet.admin.routing import ClusterClient
from korvet.admin.topics import Topics
from korvet.admin.users import Users

if TYPE_CHECKING:
    from korvet.admin.acls import Acls
    from korvet.admin.quotas import Quotas
    from korvet.admin.records import Records
    from korvet.admin.transactions import Transactions


class AdminClient(ClusterClient):
    """A client of one cluster, for one thread; a context manager. It connects at its first request.

    `bootstrap_servers` is HOST:PORT, or several of them, as a list or separated by commas. `timeout` is how many
    seconds each request may take, including retries; five if no name of a broker resolves. All errors of requests are
    AdminError. A response larger than `answer_bytes_max` is not read: AnswerTooLargeError. `on_retry` is called before
    each retry, with the error and the seconds that are left. `security` says how it connects and as whom.
    """

    topics = cached_property(Topics)
    configs = cached_property(Configs)
    partitions = cached_property(Partitions)
    cluster = cached_property(Cluster)
    groups = cached_property(Groups)
    offsets = cached_property(Offsets)
    users = cached_property(Users)

    # Few commands need the messages of these, so that others start without them.

    @cached_property
    def acls(self) -> Acls:
        """The requests about ACLs."""
        from korvet.admin.acls import Acls  # noqa: PLC0415 - as said above

        return Acls(self)

    @cached_property
    def quotas(self) -> Quotas:
        """The requests about quotas."""
        from korvet.admin.quotas import Quotas  # noqa: PLC0415 - as said above

        return Quotas(self)

    @cached_property
    def transactions(self) -> Transactions:
        """The requests about transactions."""
        from korvet.admin.transactions import Transactions  # noqa: PLC0415 - as said above

        return Transactions(self)

    @cached_property
    def records(self) -> Records:
        """The requests about records. Their codecs take half of an admin client's time to start."""
        from korvet.admin.records import Records  # noqa: PLC0415 - as said above

        return Records(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
