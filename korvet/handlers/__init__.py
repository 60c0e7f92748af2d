"""The handlers, one file per API key: a wire message in, calls into the domain, a wire message out.

Knows which APIs are served: `HANDLERS` is the table that dispatch uses and ApiVersions reads. Every handler module has

    REQUEST            the request's class, whose `api` says key and versions
    handle(request, caller, broker)  -> the response, or None where none is to be sent
    refuse(request, caller, error)   -> the response that says so of a whole request
    begin(request, caller, broker)   -> the request under way (Begun); only where that pays (Handler)
"""

from __future__ import annotations

from korvet.handlers import (
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from korvet.handlers.context import Handler

HANDLERS: dict[int, Handler] = {
    module.REQUEST.api.key: Handler(
        module.REQUEST,
        module.handle,
        module.refuse,
        getattr(module, "begin", None),
        staged=module in (produce, fetch),
    )
    for module in (
        produce,
        fetch,
        list_offsets,
        metadata,
        offset_commit,
        offset_fetch,
        find_coordinator,
        describe_groups,
        list_groups,
        join_group,
        heartbeat,
        leave_group,
        sync_group,
        api_versions,
        create_topics,
        delete_topics,
        delete_records,
        init_producer_id,
        offset_for_leader_epoch,
        describe_configs,
        alter_configs,
        describe_log_dirs,
        create_partitions,
        delete_groups,
        elect_leaders,
        incremental_alter_configs,
        alter_partition_reassignments,
        list_partition_reassignments,
        offset_delete,
        describe_cluster,
        describe_producers,
        list_config_resources,
        describe_topic_partitions,
    )
}
"""By API key."""
