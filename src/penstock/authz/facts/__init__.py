"""Facts in SQLite: a table for each signature, and questions asked of them."""
