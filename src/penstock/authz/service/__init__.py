"""The authorization service without its port: environments, keys, and the answers to calls."""
