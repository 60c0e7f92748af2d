"""What the configuration says for a share group."""

from __future__ import annotations

from korvet.cluster.group_configs import GroupConfigs
from korvet.config.settings import Settings
from korvet.share.types import SharePolicy


class SharePolicies:
    """The policies of all groups, for one worker."""

    def __init__(self, configs: GroupConfigs, settings: Settings) -> None:
        self._configs = configs
        self._settings = settings

    def of(self, group: str) -> SharePolicy:
        settings = self._settings
        return SharePolicy(
            self._configs.lock_ms(group),
            settings.group_share_delivery_count_limit,
            settings.group_share_partition_max_record_locks,
        )

    def reset(self, group: str) -> str | int:
        """Return where a group begins in a partition, as Redis has it now (values.parse_share_reset).

        Another worker may have set it a moment ago, and a group begins once. Raises as GroupConfigs does.
        """
        self._configs.refresh()
        return self._configs.share_reset(group)

    def is_committed(self, group: str) -> bool:
        return self._configs.is_committed(group)
