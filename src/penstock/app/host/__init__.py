"""Several processes on one host: the supervisor, its workers and their WALs."""
