"""The authorization service's state machines: an environment's facts and policy, and the directory
of environments and keys. docs/formats/authz.md has their entries and tables."""
