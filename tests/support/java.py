"""How the Java of tests compiles, and collects garbage."""

SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""Tests run everything a few times only: the optimising compiler would cost a third of the time.

Without it Java keeps 48 MB of compiled code, which is less than Spark's: it would throw code away and compile it again.
Two of them share two cores, which leaves none for a collector's own threads.
"""
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Options of Spark: expressions are interpreted, and none is compiled."""
