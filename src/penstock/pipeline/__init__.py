"""Jobs outside the agents: their client, engines, Spark, compaction, tables, the connector."""
