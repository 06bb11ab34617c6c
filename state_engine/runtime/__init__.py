"""Spark execution: session, sources, routing, operator runner, sinks, coordinator."""
