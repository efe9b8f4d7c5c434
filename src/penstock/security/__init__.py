"""Identities of clients: listeners, TLS, SASL. docs/security.md."""
