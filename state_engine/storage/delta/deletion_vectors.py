"""Deletion vectors of Delta tables, compared: what rows of a file one of them hides and another one does not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from state_engine.storage.delta.action_json import Action
from state_engine.storage.delta.java_calls import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_VECTORS = "org.apache.spark.sql.delta.deletionvectors."


class DeletionVectors:
    """Deletion vectors of one table, in Java.

    Args:
        spark: session with Delta.
        table: URI.
    """

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark, self._table = spark, table
        self._java = partial(java_class, spark._jvm)

    def showing_only(self, hidden: Action | None, *, but: Action | None, of: int) -> Action | None:
        """A deletion vector that shows only the rows which ``hidden`` hides and ``but`` does not.

        Args:
            hidden, but: as in an ``add``; None hides nothing.
            of: rows in the file, hidden ones included.

        Returns:
            As in an ``add``; None where there is no such row.
        """
        if hidden is None:
            return None
        shown = self._loaded(hidden)
        if but is not None:
            shown.andNot(self._loaded(but))
        if shown.isEmpty():
            return None
        rest = self._bitmap()
        rest.addRange(self._java("scala.collection.immutable.Range$Exclusive")(0, of, 1))
        rest.andNot(shown)
        rest.runOptimize()
        portable = self._java(_VECTORS + "RoaringBitmapArrayFormat").Portable()
        data = rest.serializeAsByteArray(portable)
        made = self._descriptor().inlineInLog(data, rest.cardinality())
        return {
            "storageType": made.storageType(),
            "pathOrInlineDv": made.pathOrInlineDv(),
            "sizeInBytes": made.sizeInBytes(),
            "cardinality": made.cardinality(),
        }

    def _loaded(self, vector: Action) -> Any:
        option = self._java("scala.Option").apply
        made = self._descriptor().apply(
            vector["storageType"], vector["pathOrInlineDv"], option(vector.get("offset")),
            int(vector["sizeInBytes"]), int(vector["cardinality"]), option(None),
        )  # fmt: skip
        path = self._java("org.apache.hadoop.fs.Path")(self._table)
        stored = self._java(_VECTORS + "DeletionVectorStoredBitmap")(made, option(path))
        conf = self._spark._jsc.hadoopConfiguration()
        stores = getattr(self._java("org.apache.spark.sql.delta.storage.dv.DeletionVectorStore$"), "MODULE$")
        return stored.load(stores.createInstance(conf)).copy()

    def _bitmap(self) -> Any:
        return self._java(_VECTORS + "RoaringBitmapArray")()

    def _descriptor(self) -> Any:
        return self._java("org.apache.spark.sql.delta.actions.DeletionVectorDescriptor")
