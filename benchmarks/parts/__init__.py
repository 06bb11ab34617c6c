"""What ``make bench-all`` measures: a module for each workload that has no command of its own."""
