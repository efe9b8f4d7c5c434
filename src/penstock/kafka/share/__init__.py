"""Share groups as Kafka's clients see them: what ShareFetch and ShareAcknowledge have in common."""
