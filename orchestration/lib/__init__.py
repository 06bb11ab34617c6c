"""From the engine to Dagster: names, declared states, metadata, and the factory that uses them."""
