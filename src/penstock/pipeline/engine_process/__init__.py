"""The process that holds the session, and its scheduler's side: docs/formats/engine-process.md."""
