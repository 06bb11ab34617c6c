"""One micro-batch, from the parent checkpoint to published outputs."""
