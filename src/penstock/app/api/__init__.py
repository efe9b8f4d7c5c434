"""The pipeline's HTTP API: plans, reads, objects and commits of jobs."""
