"""A job as its author wires it: sources, streams, operators and sinks as nodes of a graph."""
