"""kafka-configs: settings of topics, of one broker and of all of them."""

from __future__ import annotations

from functools import partial

from tests.jvm.tools import AtBroker
from tests.support.processes import wait_until

OF_BROKER_1 = ("--entity-type", "brokers", "--entity-name", "1")
OF_ALL = ("--entity-type", "brokers", "--entity-default")


def described(tools: AtBroker, *of: str) -> dict[str, str]:
    """Return the settings of something, each with its synonyms, as they are printed."""
    output = tools.done("kafka-configs", "--describe", *of)
    lines = [line.strip() for line in output.splitlines() if line.startswith("  ")]
    return dict(line.split("=", 1) for line in lines)


def _is_bare(tools: AtBroker, of: tuple[str, ...]) -> bool:
    return not described(tools, *of)


def altered(tools: AtBroker, *of: str, add: str = "", delete: str = "") -> str:
    """Set and unset configs; returns what the tool says."""
    flags = [flag for flag in (("--add-config", add), ("--delete-config", delete)) if flag[1]]
    return tools.done("kafka-configs", "--alter", *of, *(word for flag in flags for word in flag))


def test_configs_of_a_topic_are_set_and_unset(tools: AtBroker, topic: str) -> None:
    of = ("--entity-type", "topics", "--entity-name", topic)
    assert "segment.ms" not in described(tools, *of)
    said = altered(tools, *of, add="segment.ms=100,cleanup.policy=[compact,delete]")
    assert said == f"Completed updating config for topic {topic}.\n"
    wait_until(lambda: "segment.ms" in described(tools, *of), "every worker knows it")
    result = described(tools, *of)
    assert result["segment.ms"] == "100 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:segment.ms=100}"
    assert result["cleanup.policy"].startswith("compact,delete ")
    altered(tools, *of, add="retention.bytes=5", delete="segment.ms")
    wait_until(lambda: "segment.ms" not in described(tools, *of), "every worker knows it")
    assert described(tools, *of)["retention.bytes"].startswith("5 ")
    everything = described(tools, *of, "--all")
    assert everything["segment.ms"].startswith("604800000 ")
    assert len(everything) > 30


def test_configs_of_brokers_are_set_and_unset(tools: AtBroker) -> None:
    try:
        said = altered(tools, *OF_ALL, add="log.roll.ms=200")
        assert said == "Completed updating default config for brokers in the cluster.\n"
        assert (
            altered(tools, *OF_BROKER_1, add="log.roll.ms=300") == "Completed updating config for broker 1.\n"
        )
        wait_until(lambda: "log.roll.ms" in described(tools, *OF_ALL), "every worker knows it")
        wait_until(
            lambda: described(tools, *OF_BROKER_1).get("log.roll.ms", "").startswith("300 "),
            "so does broker 1",
        )
        assert described(tools, *OF_BROKER_1)["log.roll.ms"].endswith(
            "{DYNAMIC_BROKER_CONFIG:log.roll.ms=300, DYNAMIC_DEFAULT_BROKER_CONFIG:log.roll.ms=200, "
            "DEFAULT_CONFIG:log.roll.hours=168}"
        )
    finally:
        for of in (OF_ALL, OF_BROKER_1):
            altered(tools, *of, delete="log.roll.ms")
    for of in (OF_ALL, OF_BROKER_1):
        wait_until(partial(_is_bare, tools, of), "it is as before")
    secret = described(tools, *OF_BROKER_1, "--all")["redis.url"]
    assert secret.startswith("null sensitive=true ")


def test_what_kafka_ui_draws_of_a_cluster_is_there_and_a_change_of_one_config_keeps_the_others(
    tools: AtBroker, topic: str
) -> None:
    entity = ("--entity-type", "topics", "--entity-name", topic)
    altered(tools, *entity, add="cleanup.policy=compact,retention.ms=5000")
    assert tools.done("KafkaUi", topic).splitlines() == [
        "4.2-IV1 29",
        "true 2 0 true",
        "true true Empty 0",
        "true compact DYNAMIC_TOPIC_CONFIG 7000",
    ]
