"""Moving runs out of the WAL into segment objects."""
