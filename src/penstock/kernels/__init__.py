"""Record batches to and from columns, compiled by numba."""
