"""A unix socket in its own folder, and the identity of the peer as the kernel reports it."""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

LONGEST = 100  # bytes of a path that fit into an address anywhere
UCRED = struct.Struct("3i")  # pid, uid, gid


class PeerUser(NamedTuple):
    """A user at the other end of a socket."""

    uid: int
    name: str
    home: str


def listen_at(path: Path, group: str = "") -> socket.socket:
    """A listening socket. Its folder lets only its user in, and the members of `group` where one is named; one that
    was left behind is replaced. ValueError where that cannot be had."""
    members = _group(group)
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.parent.is_symlink() or path.parent.stat().st_uid != os.getuid():
            raise ValueError(f"the folder {path.parent} belongs to another user; the socket needs its own folder")
        os.chown(path.parent, -1, members)
        path.parent.chmod(0o700 if members < 0 else 0o750)
        with suppress(FileNotFoundError):
            path.unlink()
        with _address(path) as address:
            listener.bind(address)
        os.chown(path, -1, members)
        path.chmod(0o600 if members < 0 else 0o660)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ValueError(f"cannot listen on {path}: {error.strerror}; name another one with --socket") from None
    except BaseException:
        listener.close()
        raise
    return listener


def peer_of(connection: Any) -> PeerUser:
    """Who is at the other end."""
    if hasattr(socket, "SO_PEERCRED"):
        _, uid, _ = UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
    else:  # macOS and BSD: LOCAL_PEERCRED gives an xucred, whose second field is the user
        uid = struct.unpack_from("2i", connection.getsockopt(0, 1, 76))[1]
    return user_of(uid)


@lru_cache(1024)
def user_of(uid: int) -> PeerUser:
    """A user by number; the number stands for a name that is not known."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return PeerUser(uid, str(uid), "")
    return PeerUser(uid, entry.pw_name, entry.pw_dir)


def peer_protocol() -> type:
    """uvicorn's protocol, whose `client` on a unix socket is ("uid", the user's number)."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class PeerProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.client = ("uid", peer_of(transport.get_extra_info("socket")).uid)

    return PeerProtocol


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """What to bind to: the path, or where it is too long, a short one to the same folder."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH if hasattr(os, "O_PATH") else os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _group(name: str) -> int:
    """Its number; −1 for none."""
    if not name:
        return -1
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"there is no group {name!r}") from None
