"""The Spark session: started, checked, given the job's code, watched while it works."""
