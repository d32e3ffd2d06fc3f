"""`python -m phasewatch`."""

from phasewatch.cli import main

if __name__ == "__main__":
    main()
