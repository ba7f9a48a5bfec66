"""The command `millpond`: one file per command, found by `main`."""
