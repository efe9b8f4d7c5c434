"""Reading: the tail, WAL files, objects, blocks, and what is checked before it is served."""
