"""The contenders that run inside one Spark application, by name."""

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
