"""The programs need PyFlink, which this environment has not."""

collect_ignore = ["program.py", "operators_program.py"]
