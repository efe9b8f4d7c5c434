"""Give commands their positions: in a local journal, in a cluster's, or by a host's worker 0."""
