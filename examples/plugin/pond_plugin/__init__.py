"""Parts for millpond: `millpond train corridor --agent softq --sampler newest`."""
