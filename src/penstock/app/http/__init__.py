"""The HTTP port: connections, admission, and the routes of operators and peers."""
