"""What outputs and states are expected to be. The only package that imports Great Expectations.

The extra ``expectations`` brings it; declaring suites works without it.
"""
