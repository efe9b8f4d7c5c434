"""The process of `penstock authz serve`: its HTTP port, its start and its end."""
