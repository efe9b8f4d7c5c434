"""The mechanisms of SASL, and the states of a connection that authenticates."""
