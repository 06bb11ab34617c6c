"""The tests. Spark's workers cannot import them: their functions travel by value."""

import sys

from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(sys.modules[__name__])
