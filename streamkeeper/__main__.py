"""Entry point of ``python -m streamkeeper``, the command line."""

from streamkeeper.cli import main

if __name__ == "__main__":
    main()
