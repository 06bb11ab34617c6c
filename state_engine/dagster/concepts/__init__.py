"""What every job gets in Dagster, a file each."""
