"""The admin client: all requests to a cluster, grouped by subject.

>>> from korvet.admin import AdminClient
>>> with AdminClient("127.0.0.1:9092") as admin:
...     groups = admin.groups.list()
>>> [group.state for group in groups if group.group_id == "billing"]
['Empty']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self

from korvet.admin.cluster import Cluster, Partitions
from korvet.admin.configs import Configs
from korvet.admin.connection import ANSWER_BYTES_MAX
from korvet.admin.errors import AdminError
from korvet.admin.groups import Groups
from korvet.admin.offsets import Offsets
from korvet.admin.routing import ClusterClient
from korvet.admin.security import PLAINTEXT, ClientSecurity
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

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        timeout: float = 30.0,
        client_id: str = "korvet-admin",
        answer_bytes_max: int = ANSWER_BYTES_MAX,
        on_retry: Callable[[AdminError, float], None] | None = None,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        """Raise ValueError for a wrong address, and for a timeout that is not above 0."""
        super().__init__(
            bootstrap_servers,
            timeout=timeout,
            client_id=client_id,
            answer_bytes_max=answer_bytes_max,
            on_retry=on_retry,
            security=security,
        )
        self.topics = Topics(self)
        self.configs = Configs(self)
        self.partitions = Partitions(self)
        self.cluster = Cluster(self)
        self.groups = Groups(self)
        self.offsets = Offsets(self)
        self.users = Users(self)

    @cached_property
    def acls(self) -> Acls:
        """The requests about ACLs, whose messages few commands need."""
        from korvet.admin.acls import Acls  # noqa: PLC0415 - as said above

        return Acls(self)

    @cached_property
    def records(self) -> Records:
        """The requests about records. Their codecs take half of an admin client's time to start."""
        from korvet.admin.records import Records  # noqa: PLC0415 - as said above

        return Records(self)

    @cached_property
    def quotas(self) -> Quotas:
        """The requests about quotas, which few clients send."""
        from korvet.admin.quotas import Quotas  # noqa: PLC0415 - as said above

        return Quotas(self)

    @cached_property
    def transactions(self) -> Transactions:
        """The requests about transactions, which few clients send."""
        from korvet.admin.transactions import Transactions  # noqa: PLC0415 - as said above

        return Transactions(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
