"""`Wire`: messages between a run's parent and its processes: plain values, arrays, descriptors.

It is a socket pair. A message is JSON and, for arrays, safetensors; nothing is pickled. It closes
when either process ends, so neither waits for a dead one.
"""

from __future__ import annotations

import array
import json
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from ..errors import ChannelClosed

_HEAD = struct.Struct("=IQI")  # bytes of JSON, bytes of arrays, descriptors
_MOST_FDS = 200  # sent at once; the kernel allows 253


def wait_for(fds: Sequence[int], timeout: float) -> list[int]:
    """The descriptors that can be read or are closed. Unlike `select`, it takes any number."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout * 1000)]


def pack(tree: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Plain values, in which arrays are replaced by their names; and the arrays by name."""
    arrays: dict[str, np.ndarray] = {}

    def part(one: Any) -> Any:
        if hasattr(one, "__array__"):
            name = str(len(arrays))
            arrays[name] = np.asarray(one)
            return {"array": name}
        if isinstance(one, Mapping):
            return {name: part(value) for name, value in one.items()}
        return [part(value) for value in one] if isinstance(one, list | tuple) else one

    return part(tree), arrays


def unpack(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The reverse of `pack`, except that tuples become lists."""
    if isinstance(plain, list):
        return [unpack(one, arrays) for one in plain]
    if not isinstance(plain, dict):
        return plain
    if isinstance(name := plain.get("array"), str):
        return arrays[name]
    return {name: unpack(one, arrays) for name, one in plain.items()}


class Message(NamedTuple):
    """One message; `kind` is the name of a method, or says what it is about."""

    kind: str
    values: dict[str, Any]
    arrays: dict[str, np.ndarray]
    fds: list[int]


class Wire:
    """One end: `wire.send("ready", {"index": 0})`, `wire.receive(timeout=5)`."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._fds: list[int] = []

    @staticmethod
    def pair() -> tuple[Wire, socket.socket]:
        """Our end, and the socket for the other process."""
        ours, theirs = socket.socketpair()
        return Wire(ours), theirs

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def send(
        self,
        kind: str,
        values: Mapping[str, Any] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        fds: Sequence[int] = (),
        timeout: float = 30.0,
    ) -> None:
        """Send one message; raises ChannelClosed if the other end is gone."""
        text = json.dumps({"kind": kind, "values": values or {}}).encode()
        data = save({k: np.asarray(a, order="C") for k, a in arrays.items()}) if arrays else b""
        self._socket.settimeout(timeout)
        try:
            self._socket.sendall(_HEAD.pack(len(text), len(data), len(fds)))
            for first in range(0, len(fds), _MOST_FDS):  # each batch is sent with its own byte
                socket.send_fds(self._socket, [b"+"], list(fds[first : first + _MOST_FDS]))
            self._socket.sendall(text)
            self._socket.sendall(data)
        except (OSError, TimeoutError) as error:
            raise ChannelClosed(f"wire: {kind} could not be sent: {error}") from error

    def ready(self, timeout: float = 0.0) -> bool:
        """Whether a message has arrived, or the other end is gone."""
        return bool(wait_for([self._socket.fileno()], timeout))

    def receive(self, timeout: float) -> Message | None:
        """The next message; None if none came in time. ChannelClosed if the other end is gone."""
        if not self.ready(timeout):
            return None
        deadline = time.monotonic() + max(timeout, 30.0)
        text_size, data_size, number = _HEAD.unpack(self._exactly(_HEAD.size, deadline))
        self._exactly(-(-number // _MOST_FDS), deadline)
        plain = json.loads(self._exactly(text_size, deadline))
        data = self._exactly(data_size, deadline)
        fds, self._fds = self._fds[:number], self._fds[number:]
        return Message(plain["kind"], plain["values"], load(data) if data else {}, fds)

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while missing := size - sum(map(len, parts)):
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                fds = array.array("i")
                room = socket.CMSG_LEN(_MOST_FDS * fds.itemsize)
                part, ancillary, _, _ = self._socket.recvmsg(missing, room, socket.MSG_CMSG_CLOEXEC)
            except OSError as error:
                raise ChannelClosed(f"wire: the other end is gone: {error}") from error
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            self._fds.extend(fds)
            if not part:
                raise ChannelClosed("wire: the other end is gone")
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close this end, which the other end will notice."""
        self._socket.close()
