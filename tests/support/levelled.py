"""Runs `penstock` as a release that knows feature levels up to PENSTOCK_TEST_FEATURE_LEVEL."""

import os

from penstock.metadata import schema

# Before anything else takes it from there.
schema.FEATURE_LEVEL_MAX = int(os.environ["PENSTOCK_TEST_FEATURE_LEVEL"])  # type: ignore[misc]

from penstock.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
