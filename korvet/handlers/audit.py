"""What administrative requests have changed, for the audit log: read from their responses, never a value of a config.

So nothing secret gets there: configs and credentials are named, and of ACLs and quotas all is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from korvet.errors import ErrorCode, KafkaError, LeaseEndedError
from korvet.handlers.context import Caller
from korvet.handlers.create_acls import acl_of
from korvet.handlers.registry import Handler
from korvet.protocol.schema import Message
from korvet.protocol.types import (
    AclOperation,
    AclPermissionType,
    AclResourceType,
    PatternType,
    ResourceType,
    ScramMechanism,
)
from korvet.security.acls import Acl, ResourcePattern, Rule
from korvet.security.audit import requested
from korvet.security.authorizer import is_refusal
from korvet.security.session import Session
from korvet.turns import in_turns

Outcome = tuple[str, int]
"""What was to be changed, and the error code."""


def note(session: Session, request: Message, response: Any) -> None:  # noqa: ANN401 - any message
    """Write the changes of a request to the audit log, if it is an administrative one."""
    outcomes = CHANGES.get(request.api.key)
    if outcomes is None or response is None or getattr(request, "validate_only", False):
        return
    done, failed = [], {}
    # Once each: an ACL may be in the results of several filters.
    for what, code in dict.fromkeys(in_turns(outcomes(request, response))):
        if code:
            failed[what] = ErrorCode(code).name
        else:
            done.append(what)
    if done or failed:
        requested(session, type(request).__name__.removesuffix("Request"), done, failed)


def note_failure(handler: Handler, request: Message, caller: Caller, error: KafkaError) -> None:
    """Write that an administrative request failed as a whole, by which some of it may be done.

    Not if a right was missing, which has its own line, nor if it is handled once more.
    """
    if request.api.key in CHANGES and not (isinstance(error, LeaseEndedError) or is_refusal(error)):
        note(caller.session, request, handler.refuse(request, caller, error))


def _topics(field: str) -> Callable[[Any, Any], Iterable[Outcome]]:
    def outcomes(_request: object, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - of several APIs
        for each in getattr(response, field):
            yield f"topic {each.name or getattr(each, 'topic_id', b'').hex()}", each.error_code

    return outcomes


def _partitions(
    field: str, of: Callable[[Any], str] = lambda _request: ""
) -> Callable[[Any, Any], Iterable[Outcome]]:
    def outcomes(request: object, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - of several APIs
        for topic in getattr(response, field):
            for each in topic.partitions:
                yield f"{of(request)}{topic.name}:{each.partition_index}", each.error_code

    return outcomes


def _log_dirs(_request: object, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    for topic in response.results:
        for partition in topic.partitions:
            yield f"{topic.topic_name}:{partition.partition_index}", partition.error_code


def _configs(request: Any, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - of two APIs
    names = {
        (each.resource_type, each.resource_name): ", ".join(config.name for config in each.configs)
        for each in request.resources
    }
    kinds: Mapping[int, str] = {each.value: each.name.lower() for each in ResourceType}
    for each in response.responses:
        kind = kinds.get(each.resource_type, str(each.resource_type))
        configs = names.get((each.resource_type, each.resource_name), "")
        yield f"{kind} {each.resource_name} ({configs})", each.error_code


def _markers(request: Any, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    for asked, marker in zip(request.markers, response.markers, strict=True):
        what = "commit" if asked.transaction_result else "abort"
        for topic in marker.topics:
            for each in topic.partitions:
                yield (
                    f"{what} of producer {marker.producer_id} in {topic.name}:{each.partition_index}",
                    each.error_code,
                )


def _created_acls(request: Any, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    for each, result in zip(request.creations, response.results, strict=True):
        yield str(acl_of(each)), result.error_code


def _deleted_acls(_request: object, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    for result in response.filter_results:
        if result.error_code:
            yield "filter", result.error_code
        for each in result.matching_acls:
            resource = ResourcePattern(
                AclResourceType(each.resource_type), PatternType(each.pattern_type), each.resource_name
            )
            operation, permission = AclOperation(each.operation), AclPermissionType(each.permission_type)
            yield str(Acl(resource, Rule(each.principal, each.host, operation, permission))), each.error_code


def _elections(_request: object, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    for topic in response.replica_election_results:
        for each in topic.partition_result:
            yield f"{topic.topic}:{each.partition_id}", each.error_code


def _quotas(request: Any, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    ops = {_entity(each): each.ops for each in request.entries}
    for each in response.entries:
        entity = _entity(each)
        pairs = sorted(entity, key=lambda pair: (pair[0], pair[1] or ""))
        names = ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in pairs)
        values = (f"{op.key} {'removed' if op.remove else op.value}" for op in ops[entity])
        yield f"{names} ({', '.join(values)})", each.error_code


def _entity(entry: Any) -> frozenset[tuple[str, str | None]]:  # noqa: ANN401 - of a request or a response
    return frozenset((each.entity_type, each.entity_name) for each in entry.entity)


def _credentials(request: Any, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    changes: dict[str, list[str]] = {}
    for what, some in (("deleted", request.deletions), ("set", request.upsertions)):
        for each in some:
            known = each.mechanism in tuple(ScramMechanism)
            mechanism = ScramMechanism(each.mechanism).sasl_name if known else f"mechanism {each.mechanism}"
            changes.setdefault(each.name, []).append(f"{mechanism} {what}")
    for each in response.results:
        yield f"user {each.user} ({', '.join(changes[each.user])})", each.error_code


def _features(request: Any, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    for each in request.feature_updates:
        yield f"feature {each.feature} ({each.max_version_level})", response.error_code


def _share_topics(request: Any, response: Any) -> Iterable[Outcome]:  # noqa: ANN401 - imported by its handler
    group = f"group {request.group_id}"
    if response.error_code:
        yield group, response.error_code
    for topic in response.responses:
        yield f"{group} topic {topic.topic_name}", topic.error_code


CHANGES: dict[int, Callable[[Any, Any], Iterable[Outcome]]] = {
    19: _topics("topics"),  # CreateTopics
    20: _topics("responses"),  # DeleteTopics
    21: _partitions("topics"),  # DeleteRecords
    27: _markers,  # WriteTxnMarkers
    30: _created_acls,  # CreateAcls
    31: _deleted_acls,  # DeleteAcls
    33: _configs,  # AlterConfigs
    34: _log_dirs,  # AlterReplicaLogDirs
    37: _topics("results"),  # CreatePartitions
    42: lambda _request, response: ((f"group {each.group_id}", each.error_code) for each in response.results),
    43: _elections,  # ElectLeaders
    44: _configs,  # IncrementalAlterConfigs
    45: _partitions("responses"),  # AlterPartitionReassignments
    47: _partitions("topics", of=lambda request: f"group {request.group_id} "),  # OffsetDelete
    49: _quotas,  # AlterClientQuotas
    51: _credentials,  # AlterUserScramCredentials
    57: _features,  # UpdateFeatures
    92: _share_topics,  # DeleteShareGroupOffsets
}
"""By API key: what a request was to change, and with which outcome; 42 is DeleteGroups.

Metadata, which may create topics too, notes those itself: its response does not say which they are.
"""
