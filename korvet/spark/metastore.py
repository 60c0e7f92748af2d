"""A Hive metastore as a catalog of the lake's tables: by thrift, or its database itself, by Hive's client in PySpark.

An entry is an external table as Spark has those of Delta Lake: engines read the table's log where it lies, and the
metastore knows the place and the columns. No session of Spark is needed, only Java.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

from korvet.config.values import without_secrets
from korvet.lake.registration import CatalogEntry, CatalogPlan
from korvet.lake.schema import SCHEMA
from korvet.lake.table import LakeTopic
from korvet.spark.session import LOGGING, SparkError, check_java, launch_quietly, reason_of

_TOPIC, _TOPIC_ID = "korvet.topic", "korvet.topic.id"
"""Parameters by which an entry is known as one of Korvet's."""

_PATH = "path"
_TYPES = {
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    SCHEMA.field("timestamp").type: "timestamp",
    SCHEMA.field("headers").type: "array<struct<key:string,value:binary>>",
}
_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
_INPUT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
_OUTPUT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"


class Metastore:
    """One database of a Hive metastore."""

    def __init__(self, jvm: Any, configs: Mapping[str, str], database: str) -> None:  # noqa: ANN401 - a view of Java
        """Connect by these settings of Hive; raises Py4JError."""
        self._hive = jvm.org.apache.hadoop.hive
        conf = self._hive.conf.HiveConf()
        for name, value in configs.items():
            conf.set(name, value)
        self._client = self._hive.metastore.HiveMetaStoreClient(conf)
        self._database = database
        if database not in self._client.getAllDatabases():
            place = conf.get("hive.metastore.warehouse.dir")
            made = self._hive.metastore.api.Database(database, "Kafka topics, archived by Korvet", place, {})
            self._client.createDatabase(made)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def entries(self) -> dict[str, CatalogEntry]:
        names = self._client.getAllTables(self._database)
        return {
            table.getTableName(): _entry(table)
            for table in self._client.getTableObjectsByName(self._database, names)
        }

    def apply(self, plan: CatalogPlan) -> None:
        """Add, change and drop entries; no data is ever deleted."""
        for entry in plan.add:
            self._client.createTable(self._table(entry))
        for entry in plan.change:
            self._client.alter_table(self._database, entry.name, self._table(entry))
        for entry in plan.drop:
            self._client.dropTable(self._database, entry.name, False, True)  # noqa: FBT003 - Java takes no names

    def _table(self, entry: CatalogEntry) -> Any:  # noqa: ANN401 - an object of Java
        api = self._hive.metastore.api
        made = api.Table()
        made.setDbName(self._database)
        made.setTableName(entry.name)
        made.setTableType("EXTERNAL_TABLE")
        made.setPartitionKeys([])
        storage = api.StorageDescriptor()
        storage.setCols([api.FieldSchema(field.name, _TYPES[field.type], None) for field in SCHEMA])
        storage.setLocation(entry.location)
        storage.setInputFormat(_INPUT)
        storage.setOutputFormat(_OUTPUT)
        serde = api.SerDeInfo(None, _SERDE, {_PATH: entry.location})
        storage.setSerdeInfo(serde)
        made.setSd(storage)
        parameters = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta"}
        if entry.of is not None:
            parameters |= {_TOPIC: entry.of.topic, _TOPIC_ID: entry.of.topic_id}
        made.setParameters(parameters)
        return made


def _entry(table: Any) -> CatalogEntry:  # noqa: ANN401 - an object of Java
    parameters, name = table.getParameters(), table.getTableName()
    if _TOPIC_ID not in parameters:
        return CatalogEntry(name, None)
    of = LakeTopic(parameters[_TOPIC], parameters[_TOPIC_ID])
    return CatalogEntry(name, of, table.getSd().getSerdeInfo().getParameters().get(_PATH, ""))


@contextlib.contextmanager
def opened(uri: str, configs: Mapping[str, str], database: str) -> Iterator[Metastore]:
    """Give a database of the metastore at thrift://HOST:PORT, or of the one whose own database is at jdbc:...

    Java is started for it, unless the program has one. Raises SparkError, also for what fails in the block.
    """
    check_java()
    if uri.startswith("jdbc:"):
        place = {"javax.jdo.option.ConnectionURL": uri, "hive.metastore.uris": ""}
        if ":derby:" in uri:
            place |= {
                "datanucleus.schema.autoCreateAll": "true",
                "hive.metastore.schema.verification": "false",
            }
    else:
        place = {"hive.metastore.uris": uri}
    # Py4J logs what it does, and with a stack what it raises anyway.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        conf = SparkConf(loadDefaults=False)
        # Derby would leave a log wherever the command runs.
        flags = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} -Dderby.stream.error.file={os.devnull}"
        conf.set("spark.driver.extraJavaOptions", flags)
        launch_quietly(conf)
        SparkContext._ensure_initialized()  # noqa: SLF001 - it has the view of Java
        store = Metastore(SparkContext._jvm, {**place, **configs}, database)  # noqa: SLF001 - the same
        try:
            yield store
        finally:
            store.close()
    except (PySparkException, Py4JError) as error:
        # A URI of JDBC may have a user and a password behind these characters, and a driver may repeat all of it.
        shown = without_secrets(re.split("[?;]", uri)[0])
        raise SparkError(f"{shown}: {reason_of(error).replace(uri, shown)}") from error
