"""The documentation pages that are made from code: docs/kafka-apis.md and docs/topic-configs.md.

`make docs` writes them; a test says whether they are current.
"""

from pages.kafka_4_3 import AMONG_BROKERS, BROKER_APIS, UNSUPPORTED
from penstock.kafka.registry import APIS, NEVER
from penstock.model.broker_configs import BROKER_CONFIGS
from penstock.model.topic_configs import INT64_MAX, TOPIC_CONFIGS, Standing, TopicConfig

_MADE_FROM = "<!-- Made by `make docs`; change the code, not this page. -->"

_TELEMETRY = "client metrics are not collected (KIP-714); Kafka 4.3.1 does not advertise it, either"
_SHARE_STATE = "brokers among themselves: the state of share groups is in the journal"

NOT_SERVED: dict[str, str] = {
    "GetTelemetrySubscriptions": _TELEMETRY,
    "PushTelemetry": _TELEMETRY,
    "InitializeShareGroupState": _SHARE_STATE,
    "ReadShareGroupState": _SHARE_STATE,
    "WriteShareGroupState": _SHARE_STATE,
    "DeleteShareGroupState": _SHARE_STATE,
    "ReadShareGroupStateSummary": _SHARE_STATE,
}
"""APIs that a broker of Kafka 4.3.1 has and this server declines, with the reason."""


def apis_page() -> str:
    """Which Kafka APIs are served, and which are not and why."""
    lines = [
        "# Kafka APIs",
        "",
        _MADE_FROM,
        "",
        "Every API that a broker of Kafka 4.3.1 has, with the versions that it advertises and",
        "those that are served here. Every version in a range is served, old ones too, since",
        "clients pick very different ones. Flexible versions (KIP-482) begin where the last column",
        "says.",
        "",
        "| key | API | Kafka 4.3.1 | served | flexible from |",
        "| ---: | --- | --- | --- | --- |",
    ]
    for key, (name, advertised) in BROKER_APIS.items():
        kafka = "not advertised" if advertised == UNSUPPORTED else _range(*advertised)
        served = APIS.get(key)
        if served is None:
            lines.append(f"| {key} | {name} | {kafka} | no: {NOT_SERVED[name]} | |")
            continue
        versions = _range(served.versions_min, served.versions_max)
        if served.advertised_min != served.versions_min:
            versions += f" (advertised from {served.advertised_min}, see below)"
        flexible = "never" if served.flexible_from == NEVER else str(served.flexible_from)
        lines.append(f"| {key} | {name} | {kafka} | {versions} | {flexible} |")
    lines += [
        "",
        f"Not on a broker, and not here, are {', '.join(AMONG_BROKERS[:-1])} and",
        f"{AMONG_BROKERS[-1]}: brokers and controllers of Kafka send them to one another.",
        "",
        "Produce is advertised from version 0, as Kafka 4 does: librdkafka before 2.6.1 otherwise",
        "turns compression and the record format it needs off (KAFKA-18659). Requests below 3 end",
        "the connection.",
        "",
        "ApiVersions in a version that is not served is answered as version 0 with",
        "UNSUPPORTED_VERSION and this table (KIP-511). Any other API or version that is not served",
        "ends the connection, as in Kafka; clients that ask ApiVersions first never send one.",
        "",
        "What differs from Kafka:",
        "",
        "- Every broker serves every partition. The leader that metadata shows, and the one",
        "  replica of a partition, is the broker that clients are sent to; any broker is a",
        "  controller. A replication factor from 1 to the number of brokers, and a manual",
        "  assignment to brokers that there are, are taken and mean nothing; others are refused",
        "  with INVALID_REPLICATION_FACTOR and INVALID_REPLICA_ASSIGNMENT. Durability is the",
        "  storage's, not the replicas'.",
        "- Access rules (docs/acls.md) may name networks (CIDR) as hosts, which Kafka's don't. A",
        "  request about rules that has unknown types in it gets INVALID_REQUEST for them; Kafka",
        "  closes its connection.",
        "- Configs of brokers can be altered for all brokers (the empty name) alone, and of them",
        "  those that are defaults of topic configs. Taking from one broker what it has not (as",
        "  the end of a reassignment does with throttles) changes nothing.",
        "- Requests about replicas have nothing to do: an election is ELECTION_NOT_NEEDED, a",
        "  reassignment to brokers that there are has ended when it is answered, and the only log",
        "  directory holds all partitions. Neither of them changes the replicas that are shown.",
        "- The quorum that DescribeQuorum shows is the journal: agents are voters, the epoch is 0,",
        "  offsets are the journal's position at the asked agent. Voters can't be added or removed",
        "  (UNSUPPORTED_VERSION, as with `kraft.version` 0), and an agent that is alive can't be",
        "  unregistered.",
        "- Features come on by themselves, once every agent knows them, and stay: UpdateFeatures",
        "  takes the levels that are finalized and refuses others.",
        "- Delegation tokens are off, as in a Kafka without `delegation.token.secret.key`.",
        "- Configs of groups (GROUP resources) are those of docs/consumer-groups.md.",
        "- ListOffsets for tiered storage answers as a Kafka without tiers: the earliest local",
        "  offset is the log start offset, the others are -1.",
        "- A partition whose stored records are damaged or missing is answered with",
        "  CORRUPT_MESSAGE at the damaged offset, after all records before it (see below); of a",
        "  run that neither its sum nor its object's index proves, at the run's first offset. What",
        "  can't be read now, since a store or another agent is away, is KAFKA_STORAGE_ERROR,",
        "  which clients try again.",
        "- A log is not truncated while it is served: the leader epoch of all partitions is the",
        "  time of the log's last restore (seconds since 2020; 0: none), and OffsetForLeaderEpoch",
        "  says where the log of an earlier one was restored. Fetch compares the current leader",
        "  epoch, not the last fetched one (which followers send): there is no diverging epoch in",
        "  its answers.",
        "- DescribeLogDirs shows one directory of unknown size: most bytes are in the object",
        "  store. A broker shows those partitions that it is shown to lead.",
        "- A produced batch is checked to its last record (`penstock.validate.records`, see",
        "  docs/operations.md). Offset deltas must be 0 to n-1: Kafka rewrites a batch that has",
        "  others, here it is refused with INVALID_RECORD, and `record_errors` names the first",
        "  records at fault. So are what some client can't read, though Kafka takes it: lengths of",
        "  keys and values below -1, more than one gzip member or zstd frame, bytes after them.",
        "- A Produce's answer has 16 KiB of messages and `record_errors`. If more partitions are",
        "  refused than these have room for, the last ones have their error codes alone.",
        "- An array in a request may have at most 200,000 items, nested ones counted; a member",
        "  of a group may offer 100 protocols. More end the connection.",
        "- A Fetch that waits for records is answered early, with what there is, when another",
        "  request than a Fetch comes behind it on its connection: clients look for coordinators",
        "  and leaders over the connections by which they fetch, and requests of a connection",
        "  are answered in their order.",
        "- What OffsetFetch, DescribeConfigs, DescribeGroups, FindCoordinator,",
        "  DescribeTransactions, DescribeProducers or WriteTxnMarkers name more than once is",
        "  answered once, as Kafka does for Metadata.",
        "- A request of protocol V1 (AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and",
        "  EndTxn before version 5) by a connection that is older than its transaction closes it",
        "  without an answer: it may be a late one (docs/transactions.md). Clients send it again.",
        "- One entry of the journal ends a transaction: it is never seen being prepared, and",
        "  CONCURRENT_TRANSACTIONS is never answered. DescribeTransactions shows a start time of",
        "  an open transaction alone, and its partitions without those of groups. ListTransactions",
        "  lists each id on one broker, which rendezvous hashing chooses among the live ones.",
        "- DescribeProducers shows no coordinator's epoch (-1).",
        "- WriteTxnMarkers is an operator's: an abort that names a partition of an open",
        "  transaction ends all of it, in every partition and group; a commit is INVALID_REQUEST.",
        "",
        "## What a client makes of damage",
        "",
        "| client | at the damaged offset |",
        "| --- | --- |",
        '| Java 4.3 | `poll` raises KafkaException, "Encountered corrupt message", each time |',
        "| librdkafka 2.16 (confluent-kafka) | an error INVALID_MSG from `poll`, twice a second |",
        "| kafka-python 3.0 | `poll` raises CorruptRecordError, each time |",
        '| aiokafka 0.14 | `getmany` and `getone` raise CorruptRecordException ("Invalid CRC") |',
        "",
        "All of them get the records before it first, stay where they are, and go on past the",
        "damage when the program seeks. Each was tried; other error codes that were: to",
        "KAFKA_STORAGE_ERROR all of them try again for ever without a word, UNKNOWN_SERVER_ERROR",
        "is raised by librdkafka and kafka-python alone, and after OFFSET_OUT_OF_RANGE a client",
        "jumps to where `auto.offset.reset` says. aiokafka raises none of these: it only logs",
        '"Unexpected error while fetching data". A client whose id begins with `aiokafka`, as it',
        "does unless it is set, and that fetches in a version up to 11, therefore gets no code",
        "but one batch header without records, whose CRC-32C is wrong on purpose.",
        "",
        "ListOffsets by timestamp answers CORRUPT_MESSAGE where it has to read damaged records.",
        "",
        "## What a client gets that asks for what is not served",
        "",
        "Transactions are served once the feature level of transactions is on, which it is when",
        "every agent knows it. Before that ApiVersions names neither their APIs nor the feature",
        "`transaction.version`, and FindCoordinator and InitProducerId refuse a transactional id",
        "with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, since that is final at once in each client;",
        "at UNSUPPORTED_VERSION librdkafka asks again twice a second until its time is over.",
        "",
        "A request of an API or version that ApiVersions does not name closes its connection, as",
        "in Kafka. Such a request, and one for transactions, leaves a line at level INFO with",
        "client id, address and what was asked for, at most once per client id and API a minute,",
        "and is counted by `penstock_unserved_requests_total`.",
    ]
    return "\n".join(lines) + "\n"


def topic_configs_page() -> str:
    """What each topic config of Kafka means here."""
    lines = [
        "# Topic configs",
        "",
        _MADE_FROM,
        "",
        "Every topic config of Kafka 4 is known by the same name, type and bounds; those that",
        "begin with `penstock.` are Penstock's own. A config is *honoured*; or *stored* for the",
        "jobs of `penstock pipeline`, which act on it; or *without meaning*: accepted, kept and",
        "shown, since what it tunes does not exist here; or *refused* in every value but its",
        "default. Unknown names are refused with INVALID_CONFIG.",
        "",
        "A default for all topics is set under the broker config's name on the broker entity with",
        "the empty name (`kafka-configs.sh --entity-type brokers --entity-default`).",
        "",
        "| config | default | default for all topics by | standing |",
        "| --- | --- | --- | --- |",
    ]
    for config in TOPIC_CONFIGS.values():
        standing = config.standing.value
        brokers = ", ".join(f"`{name}`" for name, _ in config.synonyms) or "-"
        lines.append(f"| `{config.name}` | {_default(config)} | {brokers} | {standing} |")
    lines.append("")
    for config in TOPIC_CONFIGS.values():
        lines.append(f"## {config.name}")
        lines.append("")
        lines.append(config.documentation)
        if config.standing is not Standing.HONOURED:
            lines.append("")
            lines.append(f"{_STANDING_TEXT[config.standing]}: {config.reason}.")
        lines.append("")
    lines += [
        "## Configs of all brokers that set no default",
        "",
        "They are Penstock's own, and set on the same entity.",
        "",
        "| config | default | meaning |",
        "| --- | --- | --- |",
    ]
    for config in BROKER_CONFIGS.values():
        lines.append(f"| `{config.name}` | {_default(config)} | {config.documentation} |")
    return "\n".join(lines).rstrip() + "\n"


_STANDING_TEXT = {
    Standing.STORED: "Stored",
    Standing.MEANINGLESS: "Without meaning here",
    Standing.REFUSED: "Refused",
}


def _default(config: TopicConfig) -> str:
    if config.default == "":
        return "(empty)"
    if config.default == str(INT64_MAX):
        return "2^63-1 (no limit)"
    return f"`{config.default}`"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
