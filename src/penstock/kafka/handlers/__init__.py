"""One module per API; each opens with the versions that it serves."""
