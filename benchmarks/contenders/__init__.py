"""Engines with the reference job on them: this one, by element and over columns, and its peers."""

from benchmarks.contenders.contender import Contender
from benchmarks.contenders.delta_merge import DeltaMerge
from benchmarks.contenders.polars_frames import PolarsFrames
from benchmarks.contenders.statelake import Statelake
from benchmarks.contenders.statelake_columns import StatelakeColumns
from benchmarks.contenders.transform_with_state import TransformWithState, TransformWithStateInPandas

CONTENDERS: dict[str, type[Contender]] = {
    contender.name: contender
    for contender in (
        Statelake,
        StatelakeColumns,
        TransformWithState,
        TransformWithStateInPandas,
        DeltaMerge,
        PolarsFrames,
    )
}
"""Those that run inside one Spark application, by name."""
