"""Several agents on one host, one data directory and one SQLite file: one of them writes the
journal, the others hand it their entries over a Unix socket. See docs/formats/worker-socket.md."""
