"""SCRAM (RFC 5802, RFC 7677): credentials and the server's side of an exchange."""
