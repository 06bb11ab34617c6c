"""Tables of Spark's catalog by name: where they are, and how a table or view gets a name.

A name is looked up whenever it is used, so a table that was dropped and made again is another one at once. Nothing here
puts anything in the place of what somebody else named. Plays the part of Flink's ``Catalog``. Decision 0077.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JJavaError

from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_table_name
from state_engine.core.types.ddl import quoted
from state_engine.storage.java_gateway import java_class, java_gateway, java_session, jvm_of
from state_engine.storage.stores.files import normal_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Named = TypeVar("Named", bound=Any)

SPARK_CATALOG = "spark_catalog"
"""The catalog of names that name none."""


def checked_place(of: str, path: str, table: str) -> str:
    """The path of a Delta table as a URI; empty where it has a name in the catalog instead.

    Example:
        >>> checked_place("DeltaSource", "", "lake.flights"), checked_place("DeltaSource", "s3a://lake/t/", "")
        ('', 's3a://lake/t')
    """
    if bool(path) == bool(table):
        both = "both are given" if path else "neither is given"
        raise ConfigurationError(
            f"{of} takes the path of a Delta table, or table= with its name in the catalog; {both}"
        )
    if not table:
        return normal_uri(path)
    check_table_name(table)
    return ""


def full_name(table: str) -> str:
    """A name with its catalog.

    Example:
        >>> full_name("lake.flights"), full_name("prod.lake.flights")
        ('spark_catalog.lake.flights', 'prod.lake.flights')
    """
    return table if len(check_table_name(table)) > 2 else f"{SPARK_CATALOG}.{table}"


def place_of(text: str) -> tuple[str, str]:
    """Catalog and schema of a text ``schema`` or ``catalog.schema``.

    Example:
        >>> place_of("lake"), place_of("prod.lake")
        (('spark_catalog', 'lake'), ('prod', 'lake'))
    """
    catalog, _, schema = text.rpartition(".")
    check_table_name(f"{catalog or SPARK_CATALOG}.{schema}.name")
    return catalog or SPARK_CATALOG, schema


def sql_name(table: str) -> str:
    """A name with its catalog, as SQL has it.

    Example:
        >>> sql_name("lake.flights")
        '`spark_catalog`.`lake`.`flights`'
    """
    return ".".join(quoted(part) for part in full_name(table).split("."))


def described(spark: SparkSession, table: str) -> Mapping[str, str] | None:
    """The properties of what a catalog has under a name, ``provider`` and ``location`` among them; None for nothing."""
    from pyspark.errors import AnalysisException

    catalog, *schema, name = full_name(table).split(".")
    with _explained(table):
        try:
            if catalog == SPARK_CATALOG and len(schema) == 1:
                return _in_spark_catalog(spark, schema[0], name)
            identifier = java_class(jvm_of(spark), "org.apache.spark.sql.connector.catalog.Identifier")
            manager = java_session(spark).sessionState().catalogManager()
            loaded = manager.catalog(catalog).loadTable(identifier.of(_texts(spark, schema), name))
            return dict(loaded.properties())
        except AnalysisException as error:
            if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                return None
            raise


def _in_spark_catalog(spark: SparkSession, schema: str, name: str) -> Mapping[str, str]:
    """What Spark's own catalog has, without a look at the log of a Delta table."""
    catalog = java_session(spark).sessionState().catalog()
    table = catalog.getTableMetadata(_identifier(spark, schema, name))
    as_java = java_class(jvm_of(spark), "scala.jdk.javaapi.CollectionConverters").asJava
    place, provider = table.storage().locationUri(), table.provider()
    return {
        **dict(as_java(table.properties())),
        "table_type": str(table.tableType().name()),
        **({"location": place.get().toString()} if place.isDefined() else {}),
        **({"provider": str(provider.get())} if provider.isDefined() else {}),
    }


def _identifier(spark: SparkSession, schema: str, name: str) -> Any:
    option = java_class(jvm_of(spark), "scala.Option").apply(schema)
    return java_class(jvm_of(spark), "org.apache.spark.sql.catalyst.TableIdentifier")(name, option)


def table_location(spark: SparkSession, table: str) -> str:
    location = _location(table, described(spark, table))
    if location is None:
        raise ConfigurationError(
            f"the catalog has no table {table}: check the name, or create the table first; a catalog in memory "
            "(spark.sql.catalogImplementation=in-memory) knows what its own application created"
        )
    return location


def location_or_new(table: str) -> str:
    """Where a Delta table is, by the session of this process; or, where there is none, where it is to be made."""
    from state_engine.spark.session import local_session

    spark = local_session()
    location = _location(table, described(spark, table))
    return location or _new_location(spark, table)


def register_table(spark: SparkSession, table: str, location: str) -> bool:
    """Give a Delta table a name; False where it has it."""
    known = _location(table, described(spark, table))
    if known == location:
        return False
    if known is not None:
        raise ConfigurationError(
            f"the catalog has another table {table}, at {known}, and nothing was put in its place: drop or rename it, "
            "or choose another name"
        )
    with _explained(table):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {sql_name(table)} USING delta LOCATION {sql_text(location)}")
    return True


def kind_of(properties: Mapping[str, str]) -> str:
    """What something in a catalog is: the format of a table, or ``view``."""
    return (properties.get("provider") or properties.get("table_type") or "something else").lower()


def create_view(
    spark: SparkSession,
    name: str,
    text: str,
    properties: Mapping[str, str],
    *,
    comment: str,
    anew: bool,
) -> None:
    noted = ", ".join(f"{sql_text(key)} = {sql_text(value)}" for key, value in properties.items())
    how = "CREATE OR REPLACE VIEW" if anew else "CREATE VIEW"
    with _explained(name):
        spark.sql(f"{how} {sql_name(name)} COMMENT {sql_text(comment)} TBLPROPERTIES ({noted}) AS {text}")


def check_lasting(spark: SparkSession, catalog: str) -> None:
    """Refuse a catalog that ends with the session."""
    if catalog == SPARK_CATALOG and spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
        raise ConfigurationError(
            "Spark's catalog lives in memory, and what is registered in it ends with this command: have the session "
            "use a metastore, by spark.sql.catalogImplementation = hive under [spark.options] in the settings, or "
            "name another catalog"
        )


def at_path(named: Named, path: str) -> Named:
    """What has a table by name, with a path in its place: for those who ask no catalog."""
    return replace(named, path=path, table="")


def unknown_place(table: str) -> str:
    """Stands for the place of a table that nobody was asked for.

    Example:
        >>> unknown_place("lake.flights")
        'catalog://lake.flights'
    """
    return f"catalog://{table}"


def sql_text(text: str) -> str:
    r"""A text as SQL has it.

    Example:
        >>> sql_text("it's")
        "'it\\'s'"
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _location(table: str, properties: Mapping[str, str] | None) -> str | None:
    """The location of a Delta table; None where there is nothing; ConfigurationError where it is something else."""
    if properties is None:
        return None
    if kind_of(properties) != "delta" or not properties.get("location"):
        raise ConfigurationError(
            f"{table} is not a Delta table ({kind_of(properties)}): name another one; or copy its rows with "
            f"CREATE TABLE … USING delta AS SELECT * FROM {table}, and name the copy"
        )
    return normal_uri(properties["location"])


def _new_location(spark: SparkSession, table: str) -> str:
    catalog, *schema, name = full_name(table).split(".")
    if catalog != SPARK_CATALOG:
        raise ConfigurationError(
            f"there is no table {table}, and the engine creates tables in Spark's own catalog only: create "
            "it first, with CREATE TABLE … USING delta"
        )
    with _explained(table):
        path = (
            java_session(spark).sessionState().catalog().defaultTablePath(_identifier(spark, schema[0], name))
        )
    return normal_uri(path.toString())


def _texts(spark: SparkSession, texts: list[str]) -> Any:
    array = java_gateway(spark).new_array(java_class(jvm_of(spark), "java.lang.String"), len(texts))
    for place, text in enumerate(texts):
        array[place] = text
    return array


@contextmanager
def _explained(table: str) -> Iterator[None]:
    """Turns what Java and Spark raise into a ConfigurationError."""
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as error:
        raise ConfigurationError(f"{table}: {error.java_exception.getMessage()}") from error
    except PySparkException as error:
        problem = (error.getMessage() or str(error)).split("\n")[0].split(" SQLSTATE")[0]
        raise ConfigurationError(f"{table}: {problem}") from error
