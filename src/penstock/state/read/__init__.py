"""Reading the state: the view in memory, and queries of its database."""
