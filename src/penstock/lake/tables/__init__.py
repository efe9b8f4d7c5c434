"""Topics as Iceberg tables, the pure part: columns, rows, partitions, plans, offsets and what a
schema may become. What reads and writes is `penstock.pipeline.tables`; docs/tables.md describes it.
"""
