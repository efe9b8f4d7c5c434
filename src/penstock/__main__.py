"""`python -m penstock`: the same as the console script."""

from penstock.cli import main

if __name__ == "__main__":
    main()
