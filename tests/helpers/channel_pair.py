"""A parent that reads and a child that writes, to be killed: `python channel_pair.py`."""

from __future__ import annotations

import sys

from channel_world import PATIENCE, SPAWN, WIDE, send_wide

from millpond.transport import Channel


def main() -> None:
    channel = Channel.create(WIDE, 8)
    child = SPAWN.Process(target=send_wide, args=(channel, 8, 10**9))
    child.start()
    reader = channel.reader(WIDE, alive=child.is_alive)
    assert reader.pop(timeout=PATIENCE) is not None
    print(child.pid, *channel._memory.identity, flush=True)
    while reader.pop_block(8, timeout=PATIENCE) is not None:
        pass
    sys.exit(1)


if __name__ == "__main__":
    main()
