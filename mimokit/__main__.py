"""`python -m mimokit`: the command line."""

from mimokit.cli.main import main

if __name__ == "__main__":
    main()
