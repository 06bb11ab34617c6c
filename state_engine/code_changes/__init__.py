"""A job as its code is now, beside what a root holds of it: what a deployment would do."""
