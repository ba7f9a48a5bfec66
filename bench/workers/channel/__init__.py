"""One writer and one reader process per library: `python -m workers.channel.NAME` prints a card."""
