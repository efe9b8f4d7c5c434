"""A small synchronous Kafka client, for the commands. It speaks to Apache Kafka as well."""
