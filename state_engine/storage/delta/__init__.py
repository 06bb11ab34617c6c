"""Delta tables: commits of lists of files through Delta Kernel, logs read as files, locks."""
