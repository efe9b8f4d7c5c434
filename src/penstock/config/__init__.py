"""Settings of a server: TOML, environment, command line."""
