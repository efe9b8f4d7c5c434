"""Who gives commands their positions: a local journal, a cluster's, or a host's worker 0."""
