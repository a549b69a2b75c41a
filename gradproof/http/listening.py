"""Listening sockets, opened before anything else starts, and the check for the extra that serving needs."""

from __future__ import annotations

import socket


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; ValueError where the address cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        reason = reason.partition(" (while")[0]
        raise ValueError(f"cannot listen on {host}:{port}: {reason}; choose another --host or --port") from None
    # Inherited by every connection: an answer is two writes, and the second must not wait for the first's receipt.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address_of(listener: socket.socket) -> str:
    """Where a TCP socket listens, as it stands in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def need_serve() -> None:
    """ValueError where the extra is not installed."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ValueError("serving needs FastAPI: pip install 'gradproof[serve]'") from None
