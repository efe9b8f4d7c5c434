"""The authorization service: policies, facts, and the questions that both answer."""
