"""Benchmarks: this engine and its peers on the same work, on the same machine, in one run.

``python -m benchmarks`` (``make bench``) runs them; ``docs/guides/benchmarks.md`` says what is measured and how.
Nothing here is part of the product.
"""
