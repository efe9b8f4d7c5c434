"""Appending: planning frames and flushes, making them durable, ordering and answering them."""
