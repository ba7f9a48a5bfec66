"""`python -m millpond`: the same as the command `millpond`."""

from .cli._start import run

if __name__ == "__main__":
    run()
