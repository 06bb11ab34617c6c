"""The one place that uses what Dagster does not promise to keep: private modules, and how Pipes clients read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import dagster as dg
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
)
from dagster._utils.schedules import get_smallest_cron_interval

__all__ = [
    "ASSET_PARTITION_RANGE_END_TAG",
    "ASSET_PARTITION_RANGE_START_TAG",
    "BACKFILL_ID_TAG",
    "READ_IN",
    "get_smallest_cron_interval",
    "listening_client",
]

READ_IN = "1.13.27"
"""The version of Dagster in whose source all of this was read. Read it again in a newer one."""


def listening_client(client: dg.PipesClient, take: Callable[[Any], bool]) -> dg.PipesClient:
    """A copy of a client whose custom messages are taken as they come, where ``take`` says that they are ours.

    Pipes hands custom messages out when the process has ended well, and drops them where it failed. Every client of
    Dagster keeps its reader under one of two names, and all readers pass on messages by ``handle_message``; the reader
    stays of its class, because clients ask for that. Of any other client, messages are taken at the end.
    """
    for name in ("message_reader", "_message_reader"):
        reader = getattr(client, name, None)
        if isinstance(reader, dg.PipesMessageReader):
            client = copy.copy(client)
            setattr(client, name, _listening(reader, take))
    return client


def _listening(reader: dg.PipesMessageReader, take: Callable[[Any], bool]) -> dg.PipesMessageReader:
    original = reader.read_messages

    def read_messages(handler: Any) -> AbstractContextManager[Any]:
        handle = handler.handle_message

        def handle_message(message: Any) -> None:
            custom = message["method"] == "report_custom_message"
            if not (custom and take((message["params"] or {}).get("payload"))):
                handle(message)

        handler.handle_message = handle_message
        return original(handler)

    reader = copy.copy(reader)
    setattr(reader, "read_messages", read_messages)  # noqa: B010 - a method of this copy alone
    return reader
