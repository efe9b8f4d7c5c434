"""The log's state machine: commands, answers, entries, tables; `apply` changes it, `read` asks."""
