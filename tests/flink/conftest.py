"""The program needs PyFlink, which this environment has not."""

collect_ignore = ["program.py"]
