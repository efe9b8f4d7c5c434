"""Topics and configs: creating, altering, limits on how many there are."""
