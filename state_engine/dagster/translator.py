"""``StatelakeTranslator``: how parts of a job appear in Dagster, in the way of ``DagsterDbtTranslator``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import dagster as dg

from state_engine.job.job import StatefulJob

Part = Literal["checkpoint", "sink", "state", "table", "source", "operation"]
"""What an asset of a job stands for."""


@dataclass(frozen=True, kw_only=True)
class StatelakeTranslatorData:
    """One part of a job.

    Attributes:
        job: the graph.
        part: what the asset stands for.
        name: of the sink, state, published table, source or operation; ``checkpoint`` for the checkpoint.
        operator: uid of the operator of a state; None for all others.
        spec: the asset as it is by default.
    """

    job: StatefulJob
    part: Part
    name: str
    operator: str | None = None
    spec: dg.AssetSpec


class StatelakeTranslator:
    """Keys, groups, tags, owners, descriptions and upstream keys of a job's assets. Override what is to differ.

    Example:
        >>> class Mine(StatelakeTranslator):
        ...     def get_asset_spec(self, data):
        ...         spec = super().get_asset_spec(data)
        ...         return spec.replace_attributes(key=spec.key.with_prefix("lake"), group_name="silver")
        ...
        ...     def get_upstream_key(self, data):
        ...         return dg.AssetKey("inbox") if data.name == "clicks" else None
    """

    def get_asset_spec(self, data: StatelakeTranslatorData) -> dg.AssetSpec:
        """The asset of a part; ``data.spec`` by default.

        Take ``data.spec.replace_attributes(…)`` or ``.merge_attributes(…)``: partitions, code version and ``skippable``
        have to stay. Dependencies between assets of the job follow their keys.
        """
        return data.spec

    def get_upstream_key(self, data: StatelakeTranslatorData) -> dg.AssetKey | None:
        """The asset that makes what a source reads; None by default, where this is decided by location.

        By location: a sink of another job is upstream where the source reads what that sink writes; sources of
        several jobs at one location are one asset; any other source gets an external asset of its own.
        """
        return None
