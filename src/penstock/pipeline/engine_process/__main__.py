"""The engine process: `python -m penstock.pipeline.engine_process DESCRIPTOR`."""

import sys

from penstock.pipeline.engine_process.child import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
