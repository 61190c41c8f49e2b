"""`python -m flowengine` is the command line."""

from flowengine.cli import main

if __name__ == "__main__":
    main(prog_name="python -m flowengine")
