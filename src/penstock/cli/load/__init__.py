"""The load program of `penstock bench`: workloads that measure any server of Kafka's protocol."""
