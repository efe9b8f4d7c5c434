"""Share groups (KIP-932): members share partitions record by record."""
