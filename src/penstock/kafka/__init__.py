"""The Kafka face: bytes, connections, and one handler module per API."""
