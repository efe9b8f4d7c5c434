"""A server from its settings: its lifecycle, its shapes, its HTTP port."""
