"""``TableFacts``: what a snapshot says of a Delta table besides its files, for identity and allow-list checks."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from state_engine.storage.delta.kernel_classes import KernelClasses


@dataclass(frozen=True)
class TableFacts:
    """What a snapshot says of a table, for identity and allow-list checks.

    Attributes:
        identity: the table id in Delta's metadata; a re-created table has another one.
    """

    version: int
    identity: str
    schema: dict[str, Any]
    properties: dict[str, str]
    partition_columns: list[str]
    features: frozenset[str]


class FactsReader:
    """Reads the facts of snapshots, and remembers them: most snapshots differ in nothing but the version."""

    def __init__(self, classes: KernelClasses) -> None:
        self._classes = classes
        self._known: dict[str, tuple[str, TableFacts]] = {}

    def read(self, uri: str, snapshot: Any) -> TableFacts:
        metadata, protocol = snapshot.getMetadata(), snapshot.getProtocol()
        configuration, partitions = metadata.getConfiguration(), snapshot.getPartitionColumnNames()
        identity, schema = str(metadata.getId()), metadata.getSchemaString()
        # the text of all metadata would repeat the schema: answers beyond 8 KB wait 40 ms for an acknowledgement
        fingerprint = (
            f"{identity} {schema} {configuration.toString()} {partitions.toString()} {protocol.toString()}"
        )
        version = int(snapshot.getVersion())
        known = self._known.get(uri)
        if known is None or known[0] != fingerprint:
            properties, partition_columns, *features = self._classes.plain(
                configuration,
                partitions,
                protocol.getReaderFeatures(),
                protocol.getWriterFeatures(),
            )
            facts = TableFacts(
                version=version,
                identity=identity,
                schema=json.loads(schema),
                properties=properties,
                partition_columns=partition_columns,
                features=frozenset(f for some in features for f in some),
            )
            known = self._known[uri] = (fingerprint, facts)
        return replace(known[1], version=version)
