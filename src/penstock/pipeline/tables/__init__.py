"""Topics as Iceberg tables, the shell: catalogs, Parquet files, commits and the job.
docs/tables.md is the page; what can be decided without I/O is `penstock.pipeline.tables`."""
