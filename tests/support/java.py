"""How the Java of tests compiles."""

SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Tests run everything a few times only: the optimising compiler would cost a third of the time.

Without it Java keeps 48 MB of compiled code, which is less than Spark's: it would throw code away and compile it again.
"""
