"""``TableFacts``: what a snapshot says of a Delta table besides its files, for identity and allow-list checks."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from state_engine.backends.delta.kernel_classes import elements


@dataclass(frozen=True)
class TableFacts:
    """What a snapshot says of a table, for identity and allow-list checks.

    Attributes:
        version: of the snapshot.
        identity: the table id in Delta's metadata; a re-created table has another one.
        schema: Delta's schema as parsed JSON.
        properties: table properties.
        partition_columns: names.
        reader_version, writer_version: of the protocol.
        features: reader and writer features of the protocol.
    """

    version: int
    identity: str
    schema: dict[str, Any]
    properties: dict[str, str]
    partition_columns: list[str]
    reader_version: int
    writer_version: int
    features: frozenset[str]


class FactsReader:
    """Reads the facts of snapshots, and remembers them: most snapshots differ in nothing but the version."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, TableFacts]] = {}

    def read(self, uri: str, snapshot: Any) -> TableFacts:
        """The facts of a snapshot of the table at ``uri``."""
        metadata, protocol = snapshot.getMetadata(), snapshot.getProtocol()
        # reading a Java collection takes a round trip an element
        fingerprint = f"{metadata.toString()} {metadata.getSchemaString()} {protocol.toString()}"
        version = int(snapshot.getVersion())
        known = self._known.get(uri)
        if known is None or known[0] != fingerprint:
            features = [*elements(protocol.getReaderFeatures()), *elements(protocol.getWriterFeatures())]
            properties = elements(metadata.getConfiguration().entrySet())
            facts = TableFacts(
                version=version,
                identity=str(metadata.getId()),
                schema=json.loads(metadata.getSchemaString()),
                properties={str(e.getKey()): str(e.getValue()) for e in properties},
                partition_columns=[str(c) for c in elements(snapshot.getPartitionColumnNames())],
                reader_version=int(protocol.getMinReaderVersion()),
                writer_version=int(protocol.getMinWriterVersion()),
                features=frozenset(str(f) for f in features),
            )
            known = self._known[uri] = (fingerprint, facts)
        return replace(known[1], version=version)
