"""What each setting of a broker is, by group, as DescribeConfigs, the console, help texts and the reference show it.

A text can be read alone. It says what the setting is, its unit unless the name ends with it, and the effect of a larger
value unless it is obvious.
"""

_TEXT = """\
# Listeners and TLS
listen: Address and port that Kafka clients connect to; port 0 takes a free one.
advertised: Address and port that clients are given in metadata; empty: the address of `listen`.
listeners: Several listeners in place of `listen`, as `NAME://HOST:PORT,...`.
advertised.listeners: Address that clients of each listener are given in metadata, as `NAME://HOST:PORT,...`; a listener
    that is left out advertises its address in `listeners`.
listener.security.protocol.map: Security protocol of each listener, as `NAME:PROTOCOL,...`: PLAINTEXT, SSL,
    SASL_PLAINTEXT or SASL_SSL.
ssl.keystore.type: Form of the key store.
ssl.keystore.location: File with a listener's private key and certificate chain, in PEM.
ssl.keystore.certificate.chain: Certificate chain in PEM, instead of `ssl.keystore.location`.
ssl.keystore.key: Private key in PEM, for `ssl.keystore.certificate.chain`.
ssl.key.password: Password of an encrypted private key.
ssl.truststore.type: Form of the trust store.
ssl.truststore.location: File with the CAs of clients' certificates, in PEM.
ssl.truststore.certificates: CAs of clients' certificates in PEM, instead of `ssl.truststore.location`.
ssl.client.auth: Whether clients must present a certificate.
ssl.enabled.protocols: Versions of TLS that clients may use.
ssl.protocol: Newest version of TLS that clients may use.
ssl.cipher.suites: Cipher suites of TLS, by IANA's or OpenSSL's names; empty: all supported ones.
ssl.principal.mapping.rules: Rules that make a user's name of the subject of a client certificate:
    `RULE:PATTERN/REPLACEMENT/[LU],...,DEFAULT`.

# Rights and logins
authorizer.class.name: Authorizer of requests: `StandardAuthorizer` decides by ACLs; empty: every client may do
    everything.
super.users: Users with every right, even if ACLs deny it, as `User:NAME;User:NAME`.
allow.everyone.if.no.acl.found: Allow everybody to use resources without any ACL; if false, only super users may.
authorizer.cache.max.age.ms: How long a worker uses the ACLs that it last read while Redis is down; after that it
    refuses requests with a retriable error.
sasl.enabled.mechanisms: SASL mechanisms that clients may use; GSSAPI, Kafka's default, is not supported.
sasl.plain.users.file: TOML file with users and passwords for PLAIN, in place of Kafka's JAAS file; users that are not
    in it log in by PLAIN with their SCRAM passwords.
sasl.server.max.receive.size: Largest request, in bytes, of a client that has not logged in; a larger one closes the
    connection.
connections.max.reauth.ms: How long a login is valid; then the client must log in again on its connection, or is
    disconnected. 0: no limit.
connection.failed.authentication.delay.ms: How long a failed login waits for its answer, after which the connection is
    closed; a larger value slows down guesses of passwords.
sasl.oauthbearer.jwks.endpoint.url: URL (http, https or file) of the identity provider's public keys (JWKS), which
    verify tokens.
sasl.oauthbearer.jwks.endpoint.refresh.ms: How often the identity provider's keys are fetched again.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms: First pause before the identity provider's keys are fetched again,
    after a token with an unknown key or a failed request; it doubles each time.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms: Longest pause before the identity provider's keys are fetched
    again.
sasl.oauthbearer.expected.audience: Audiences (claim `aud`), of which a token must name one; empty: any.
sasl.oauthbearer.expected.issuer: Issuer (claim `iss`) of accepted tokens; empty: any.
sasl.oauthbearer.clock.skew.seconds: How far the clocks of identity provider and broker may differ when the times of a
    token are checked.
sasl.oauthbearer.sub.claim.name: Claim of a token that holds the user's name.
sasl.oauthbearer.scope.claim.name: Claim of a token that holds its scopes, a text or a list of texts; a token with
    another value is refused.

# Console and /metrics
ops.listen: Address and port of the console, /healthz, /readyz and /metrics; empty: none of them is served.
ops.allowed.hosts: Host names that requests to the console and /metrics may use, besides IP addresses and localhost;
    `*`: any.
ops.ssl.keystore.location: PEM file with private key and certificate chain; with it `ops.listen` serves HTTPS only.
ops.ssl.key.password: Password of the private key in `ops.ssl.keystore.location`, if the key is encrypted.
console.enable: Serve the console at `ops.listen`; it shows all records.
console.token.file: File with the token for making changes in the console; empty: the console makes no changes.
console.client.config: File with the client configs that the console connects to its broker with; needed if no listener
    is PLAINTEXT.
console.read.token.file: File with the token for reading the console and /metrics; empty: everybody who reaches
    `ops.listen` may read.
log.figures.interval.ms: How often the keeper collects sizes and ages of logs, and the lag of groups, for /metrics; at
    least 10 ms for each partition. A smaller value makes metrics newer and costs more CPU.
metrics.partitions.max: Number of partitions with metrics of their own in /metrics; with more partitions, metrics are
    summed by topic.

# Broker
data.dir: Directory of the embedded server's data, and of its socket.
workers: Number of worker processes, which serve clients; 0: one for each core, on macOS one.
broker.id: Id of this broker, unique among brokers on one Redis; -1: take a free id.
cluster.id: Id of the cluster, which its first broker stores in Redis; empty: the id in Redis.
namespace: Prefix of every key in Redis; brokers with the same prefix on one Redis are one cluster.
log.format: Format of log lines on stderr.
log.level: Least severe level of log lines that are written.
log.levels: Levels of single loggers, comma-separated, for example `korvet.groups=debug`; a logger is a module or a
    package with all its modules.
drain.timeout.ms: How long a stopping worker may take to finish its requests; then it ends, and open requests fail.
drain.delay.ms: How long a stopping broker still serves while /readyz reports that it drains; set it to the time that a
    load balancer needs to notice.
broker.lease.ms: How long a broker that stops responding stays in the metadata and keeps its id; after this time its
    workers change nothing any more until they reach Redis again.
keeper.lease.ms: How long a keeper that stops responding holds its lease; then another broker's keeper takes over.

# Redis
redis.url: URL of the Redis (7.0 or later) or Valkey (7.2 or later) that holds the log: one server, its Sentinels, or a
    cluster; empty: start the embedded server.
redis.password.file: File with the password of Redis, in place of a password in `redis.url`.
redis.timeout.ms: How long Redis may take for a command; then the request fails with a retriable error.
redis.connect.timeout.ms: How long connecting to Redis may take.
redis.read.max.bytes: Bytes of records that a worker may request from Redis at a time, by their expected size; further
    fetches wait. A larger value needs more memory for Redis' output buffers.
replicas: Number of Redis replicas that must have a batch (acks=all), a commit, or a change of groups, topics or configs
    before the request is answered.
min.insync.replicas: Number of Redis servers, master included, that must be in sync; with fewer, acks=all is refused.
    acks=all also waits until that many have the batch.
embedded.maxmemory.bytes: Memory limit of the embedded server, at which it refuses writes; 0: no limit.
embedded.disk.max.bytes: Size limit of the files in the embedded server's data directory, near which producers are
    refused; 0: no limit.
memory.throttle.percent: Used share of Redis' maxmemory, or of `embedded.disk.max.bytes`, from which producers are
    throttled.
memory.refuse.percent: Used share of Redis' maxmemory, or of `embedded.disk.max.bytes`, from which producers are refused
    with a retriable error.
throttle.max.ms: How long a producer is throttled when memory is nearly at `memory.refuse.percent`; less before that.
subscription.linger.ms: How long a worker listens to announcements of a partition after its last waiting fetch or fetch
    session.

# Archive
lake.path: Directory or URI of the archive of topics with `remote.storage.enable`; empty: no archive.
lake.storage.options: Options of the archive's object store (credentials, region, endpoint), as NAME=VALUE,
    comma-separated.
lake.iceberg.catalog: Iceberg catalog in which the archive's tables are registered too, by pyiceberg's properties as
    NAME=VALUE, comma-separated, for example `type=sql,uri=sqlite:////FILE`; empty: none.
lake.interval.ms: Pause between two rounds of archiving; 0: brokers do not archive, `korvet lake archive` does.
lake.upkeep.interval.ms: Pause between two rounds of compaction and expiry of the archive; 0: brokers do neither.
lake.master: Spark master that archives: `local[CORES,TRIES]`, or the URL of a cluster.
remote.fetch.max.wait.ms: How long a fetch waits for the archive; records that are read later are returned by a later
    fetch.
remote.list.offsets.request.timeout.ms: How long a search by time may take in the archive.

# Topics
auto.create.topics.enable: Create a missing topic when a client asks for its metadata.
num.partitions: Number of partitions of a topic that is created without one.
default.replication.factor: Replication factor of a topic that is created without one; every value is accepted and
    reported as 1.
delete.topic.enable: Let clients delete topics.
topic.reserved.names: Topic names that clients cannot create, with shell wildcards, comma-separated; empty: none.
compression.type: Compression of batches that consumers get; `producer`: as the producer sent them (format `record`:
    uncompressed).
storage.format: Storage of a new topic: one stream entry for each record, or for each batch.
storage.format.topics: Storage formats of new topics by name, as `PATTERN=FORMAT` with shell wildcards, comma-separated;
    the first matching pattern applies, in place of `storage.format`.
redis.placement: Placement of new topics on the masters of a Redis Cluster: `name` by the hash of each partition's name,
    `even` with the same number of partitions on each.
storage.compression: Compression in Redis of large record values, and of batches that arrived uncompressed.
storage.compression.min.bytes: Size from which a record value, or a batch, is compressed in Redis.
offset.encoding: Offsets of a new topic in format `record`: `time` makes them of the time at which Redis added the
    record, with gaps; `dense` counts records. In format `batch` they are always dense.
offset.sequence.bits: Number of low bits of an offset in a new topic with `offset.encoding=time`; the high bits are
    milliseconds. With 12, offsets end in September 2039.

# Retention and compaction
log.retention.ms: How long records are kept, of topics without `retention.ms`; negative: without limit.
log.retention.bytes: Bytes that a partition keeps, as stored in Redis; negative: no limit.
log.retention.check.interval.ms: How often the keeper checks logs for records to delete.
log.local.retention.ms: How long an archived topic keeps records in Redis; -2: as long as `log.retention.ms`.
log.local.retention.bytes: Bytes that a partition of an archived topic keeps in Redis; -2: as many as
    `log.retention.bytes`.
log.cleanup.policy: How old records are removed: `delete`, `compact`, or both with a comma; empty: they are kept.
log.roll.ms: Age from which the newest records of a log are compacted too.
log.cleaner.enable: Compact topics whose `cleanup.policy` has `compact`.
log.cleaner.backoff.ms: How often the keeper looks for logs to compact.
log.cleaner.dedupe.buffer.size: Memory for the keys of a compaction; with a smaller value a log with many keys is read
    several times.
log.cleaner.delete.retention.ms: How long a compacted topic keeps tombstones (records with a null value) after their
    first compaction.
log.cleaner.min.cleanable.ratio: Share of uncompacted bytes in a log from which it is compacted again; a smaller value
    compacts more often.
log.cleaner.min.compaction.lag.ms: Age that a record must have to be compacted.
log.cleaner.max.compaction.lag.ms: Age from which a record is compacted whatever `min.cleanable.dirty.ratio` says.
log.message.timestamp.type: Timestamp of a record: the producer's (`CreateTime`), or the time of its append
    (`LogAppendTime`).
log.message.timestamp.before.max.ms: How far a producer's timestamp may be in the past; older records are refused.
log.message.timestamp.after.max.ms: How far a producer's timestamp may be in the future; later records are refused.

# Requests and connections
message.max.bytes: Largest record batch, as compressed by its producer; a larger one is refused.
message.max.records: Largest number of records in a batch in format `record`; a larger batch is refused. One script
    appends the batch, and blocks Redis for about 3 us for each record.
socket.request.max.bytes: Largest Produce request; a larger one closes the connection.
request.control.max.bytes: Largest request other than Produce; a larger one closes the connection.
queued.max.request.bytes: Memory of a worker for requests in progress; further requests wait. The same amount again
    limits decoded batches, and once more fetched records that are not sent yet, with which responses become smaller.
record.decompressed.max.bytes: Largest size of a decompressed record batch; a larger one is refused. In format `record`
    it also limits how long one append blocks Redis.
fetch.max.bytes: Largest fetch response; only a single batch may be larger.
max.incremental.fetch.session.cache.slots: Number of fetch sessions of a broker, divided among its workers; a client
    without a session names all partitions in each fetch.
connections.max.idle.ms: Time without a request after which a connection is closed; -1: never.
max.connections: Number of connections of a broker, or of a listener; further ones wait until they are accepted.
max.connections.per.ip: Number of connections from one address to a broker; further ones are closed.
max.connections.per.ip.overrides: Number of connections from single addresses, in place of `max.connections.per.ip`, as
    `ADDRESS:COUNT,...`.
max.connection.creation.rate: Number of new connections a second of a broker, or of a listener; further ones wait until
    they are accepted.
quota.window.num: Number of samples over which rates of quotas are measured, the current one included; more samples
    allow longer bursts.
quota.window.size.seconds: Length of a sample over which rates of quotas are measured.
controller.quota.window.num: Number of samples of the quota `controller_mutation_rate`; more samples allow larger bursts
    of changes.
controller.quota.window.size.seconds: Length of a sample of the quota `controller_mutation_rate`.
connection.receive.timeout.ms: Time after which a connection is closed if a request that has begun to arrive makes no
    progress.

# Producers and transactions
producer.id.expiration.ms: Time without a batch after which a partition forgets an idempotent producer.
transaction.max.timeout.ms: Longest `transaction.timeout.ms` that a producer may ask for.
transactional.id.expiration.ms: Time without a transaction after which a transactional id is forgotten.
transaction.abort.timed.out.transaction.cleanup.interval.ms: How often the keeper looks for transactions past their
    timeout, and aborts them.

# Groups
group.initial.rebalance.delay.ms: How long the first rebalance of an empty group waits for more members.
group.min.session.timeout.ms: Shortest session timeout that a member of a classic group may ask for.
group.max.session.timeout.ms: Longest session timeout that a member of a classic group may ask for.
group.max.size: Largest number of members of a classic group.
offsets.retention.minutes: How long a group without members keeps its committed offsets.
offsets.retention.check.interval.ms: How often the keeper removes expired offsets.
offset.metadata.max.bytes: Largest metadata of a committed offset; a larger one is refused.
group.mirror: Show committed offsets as Redis consumer groups of the streams.

# Groups of the consumer protocol
group.consumer.session.timeout.ms: Session timeout of members of the consumer protocol (KIP-848): without a heartbeat
    for this time a member is removed.
group.consumer.min.session.timeout.ms: Shortest `consumer.session.timeout.ms` that a group may set.
group.consumer.max.session.timeout.ms: Longest `consumer.session.timeout.ms` that a group may set.
group.consumer.heartbeat.interval.ms: How often members of the consumer protocol (KIP-848) send heartbeats.
group.consumer.min.heartbeat.interval.ms: Shortest `consumer.heartbeat.interval.ms` that a group may set.
group.consumer.max.heartbeat.interval.ms: Longest `consumer.heartbeat.interval.ms` that a group may set.
group.consumer.max.size: Largest number of members of a group of the consumer protocol (KIP-848).
group.consumer.assignors: Assignors of groups of the consumer protocol (KIP-848); the first one applies if no member
    names another.
group.consumer.migration.policy: Whether groups with members may change from the classic to the consumer protocol
    (`upgrade`), back (`downgrade`), or both.
group.consumer.regex.refresh.interval.ms: How often regular expressions of subscriptions are matched again while no
    topic changes.

# Share groups
group.share.session.timeout.ms: Session timeout of members of share groups: without a heartbeat for this time a member
    is removed.
group.share.min.session.timeout.ms: Shortest `share.session.timeout.ms` that a group may set.
group.share.max.session.timeout.ms: Longest `share.session.timeout.ms` that a group may set.
group.share.heartbeat.interval.ms: How often members of share groups send heartbeats.
group.share.min.heartbeat.interval.ms: Shortest `share.heartbeat.interval.ms` that a group may set.
group.share.max.heartbeat.interval.ms: Longest `share.heartbeat.interval.ms` that a group may set.
group.share.max.size: Largest number of members of a share group.
group.share.assignors: Assignors of share groups; only `simple` exists.
group.share.record.lock.duration.ms: How long a member of a share group holds the lock of a record that it has acquired.
group.share.min.record.lock.duration.ms: Shortest `share.record.lock.duration.ms` that a group may set.
group.share.max.record.lock.duration.ms: Longest `share.record.lock.duration.ms` that a group may set.
group.share.delivery.count.limit: Number of deliveries of a record to a share group, after which it is archived (not
    delivered again).
group.share.partition.max.record.locks: Number of records of a partition that a share group may have acquired, or
    waiting to be delivered again; with that many, no others are delivered.
group.share.max.share.sessions: Number of share sessions of a broker, over all workers.

# Streams groups
group.streams.session.timeout.ms: Session timeout of members of streams groups: without a heartbeat for this time a
    member is removed.
group.streams.min.session.timeout.ms: Shortest `streams.session.timeout.ms` that a group may set.
group.streams.max.session.timeout.ms: Longest `streams.session.timeout.ms` that a group may set.
group.streams.heartbeat.interval.ms: How often members of streams groups send heartbeats.
group.streams.min.heartbeat.interval.ms: Shortest `streams.heartbeat.interval.ms` that a group may set.
group.streams.max.heartbeat.interval.ms: Longest `streams.heartbeat.interval.ms` that a group may set.
group.streams.max.size: Largest number of members of a streams group.
group.streams.num.standby.replicas: Number of standby tasks of each stateful task in a streams group.
group.streams.max.standby.replicas: Largest `streams.num.standby.replicas` that a group may set.
group.streams.initial.rebalance.delay.ms: How long the first assignment of an empty streams group waits for more
    members.
"""


def by_group(text: str) -> dict[str, dict[str, str]]:
    """Read what things are, by their names, under the headings of `text`; a line that is indented goes on."""
    groups: dict[str, dict[str, str]] = {}
    group: dict[str, str] = {}
    for line in text.replace("\n    ", " ").splitlines():
        if line.startswith("# "):
            group = groups[line.removeprefix("# ")] = {}
        elif line:
            name, _, said = line.partition(": ")
            group[name] = said
    return groups


GROUPS = by_group(_TEXT)
DOCUMENTATION = {name: text for group in GROUPS.values() for name, text in group.items()}
