"""Consumer groups whose assignments the coordinator makes (KIP-848): one machine per group."""
