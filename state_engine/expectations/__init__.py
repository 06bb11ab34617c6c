"""What outputs and states are expected to be. The only package that imports Great Expectations.

The extra ``expectations`` brings it; declaring suites works without it.
"""

from state_engine.expectations.suites import Expectation, OfSink, OfState, Suite

__all__ = ["Expectation", "OfSink", "OfState", "Suite"]
