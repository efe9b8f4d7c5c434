"""TLS of listeners: contexts that follow their files, and principals from certificates."""
