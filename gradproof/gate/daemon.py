"""The daemon: one process that makes all decisions, on a unix socket for agents and on TCP for people.

There is one for a store: it holds a lock, which goes with the process however it ends. On SIGTERM and SIGINT it stops
listening, answers what it has, writes what waits, and ends the learner.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradproof.gate import trend
from gradproof.gate.decider import Decider
from gradproof.gate.place import socket_path
from gradproof.gate.service import AGENT, ROLES, GateService, app, counted, token_reader, way_finder
from gradproof.gate.store import TOKENS, Store, read_settings
from gradproof.gate.supervisor import LearnerSupervisor, learner_command
from gradproof.http.answers import AsgiApp, ConnectionScope
from gradproof.http.connections import bounded_protocol
from gradproof.http.door import Door, Visitor, own_hosts
from gradproof.http.failures import Contained, place_of
from gradproof.http.limits import RateLimit
from gradproof.http.listening import address_of, listen, need_serve
from gradproof.http.peer import listen_at, peer_protocol, user_of
from gradproof.http.tokens import Tokens

SWITCH = 0.001  # seconds that a thread may keep Python from the loop
SYNC, TIDY = 5.0, 3600.0  # seconds between two syncs of the audit log, and two rounds of retention and trend
SOON = 60.0  # seconds until the first round
DRAIN = 10  # seconds that answers have when the daemon ends
PEOPLE, AGENTS = 512, 1024  # connections over TCP and on the socket: neither takes all file descriptors
DESCRIPTORS = 4096  # that the process may open, where the system lets it
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class DaemonOptions:
    """Where the daemon listens, and how it behaves. Without `port` there is no TCP; `group` may use the socket; each
    visitor may ask `rate` times a second. With `idle` it ends after so many minutes without a request."""

    socket: Path | None = None
    group: str = ""
    host: str = "127.0.0.1"
    port: int | None = None
    public_hosts: tuple[str, ...] = ()
    rate: float = 1000.0
    strangers: float = 20.0  # requests a second of an address, without a token; five times as many at once
    learn: bool = True
    idle: float = 0.0
    seed: int = 0


def tokens_of(store: Path) -> Tokens:
    """The tokens of a store; no name can be taken for a user of the socket."""
    return Tokens(store / TOKENS, ROLES)


def run(store: Store, options: DaemonOptions) -> None:
    """Serves until SIGINT or SIGTERM a store whose lock the caller holds. ValueError where it cannot start: nothing has
    been changed then."""
    need_serve()
    tokens = tokens_of(store.folder)
    if options.port is not None and options.host not in LOOPBACK and not tokens.all():
        raise ValueError(
            f"listening on {options.host}, beyond loopback, needs a token; make one:"
            f" gradproof gate token add NAME --role admin --store {store.folder}"
        )
    sockets = _Sockets(store, options)
    try:
        decider = Decider(store, port=sockets.port)
        try:
            sys.setswitchinterval(SWITCH)
            _allow_descriptors()
            with _runner() as runner:
                runner.run(_serve(store, decider, tokens, sockets, options))
        finally:
            decider.close()
            store.audit.sync()
    finally:
        sockets.close()


class _Sockets:
    """What the daemon listens on."""

    def __init__(self, store: Store, options: DaemonOptions):
        self.tcp: socket.socket | None = None
        at = options.socket or socket_path(store.folder)
        if options.port is not None:
            self.tcp = listen(options.host, options.port)
        try:
            self.unix = listen_at(Path(os.path.abspath(at)), options.group)
        except BaseException:
            self.close_tcp()
            raise
        self.path = os.path.abspath(at)

    @property
    def address(self) -> str:
        return address_of(self.tcp) if self.tcp is not None else ""

    @property
    def port(self) -> int:
        return self.tcp.getsockname()[1] if self.tcp is not None else 0

    def close_tcp(self) -> None:
        if self.tcp is not None:
            self.tcp.close()

    def close(self) -> None:
        self.close_tcp()
        self.unix.close()
        with suppress(OSError):
            os.unlink(self.path)


def doors(service: GateService, options: DaemonOptions, hosts: frozenset[str]) -> tuple[AsgiApp, AsgiApp]:
    """The service as it stands behind the socket, and behind TCP."""
    made = app(service)
    rate = RateLimit(options.rate, max(1.0, options.rate))
    strangers = RateLimit(options.strangers, 5 * options.strangers)
    unix = Door(made, way_finder(made, socket=True), _by_peer, rate=rate, strangers=strangers)
    tcp = Door(made, way_finder(made), token_reader(service.tokens), hosts=hosts, rate=rate, strangers=strangers)
    return Contained(counted(unix, service), _say), Contained(counted(tcp, service), _say)


def _by_peer(scope: ConnectionScope) -> Visitor | None:
    """On the socket everybody is an agent, whose name the kernel tells."""
    client = scope.get("client")
    if not client or client[0] != "uid":
        return None
    user = user_of(client[1])
    return Visitor(f"user:{user.name}", AGENT, user.home)


async def _serve(store: Store, decider: Decider, tokens: Tokens, sockets: _Sockets, options: DaemonOptions) -> None:
    service, loop = GateService(store, decider, tokens, sockets.address, sockets.path), asyncio.get_running_loop()
    hosts = own_hosts(options.host, sockets.port, options.public_hosts)
    unix, tcp = doors(service, options, hosts)
    gc.collect()
    gc.freeze()  # what is loaded stays: collections need not look at it again
    servers = [_server(unix, bounded_protocol(AGENTS, peer_protocol()), sockets.unix)]
    if sockets.tcp is not None:
        servers.append(_server(tcp, bounded_protocol(PEOPLE), sockets.tcp))

    def end() -> None:
        service.ending.set()
        for server, _ in servers:
            server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    _announce(service)
    beside = [asyncio.create_task(_tidy(service)), asyncio.create_task(_sync(service))]
    if options.idle:
        beside.append(asyncio.create_task(_end_when_idle(service, options.idle * 60, end)))
    if options.learn:
        learner = LearnerSupervisor(learner_command(service.store.folder, options.seed), _say)
        service.learner = learner.plain
        beside.append(asyncio.create_task(learner.run()))
    try:
        await asyncio.gather(*(server.serve([listener]) for server, listener in servers))
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        service.close()


def _server(behind: AsgiApp, protocol: Any, listener: socket.socket) -> tuple[Any, socket.socket]:
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self):  # there are two servers, and one way to end both
            yield

    options: dict[str, Any] = dict(log_level="error", access_log=False, server_header=False, ws="none", lifespan="off")
    config = uvicorn.Config(behind, http=protocol, timeout_graceful_shutdown=DRAIN, proxy_headers=False, **options)  # pyright: ignore[reportArgumentType]
    return Server(config), listener


def _allow_descriptors() -> None:
    """Many systems let a process open 1024 files unless it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _runner() -> asyncio.Runner:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=new_event_loop)


def _announce(service: GateService) -> None:
    lines = [f"deciding for {service.store.folder}", f"  agents     unix:{service.socket}"]
    if service.address:
        lines.append(f"  people     http://{service.address}/ (Ctrl-C stops it)")
        if not service.tokens.all():
            lines.append("  there are no tokens yet; create one with: gradproof gate token add NAME --role admin")
    if service.decider.settings.shadow:
        lines.append("  shadow mode: every call is allowed, and the gate's own decision is recorded")
    print("gradproof: " + "\n".join(lines), flush=True)


async def _sync(service: GateService) -> None:
    """Lines of decisions survive kill -9 at once, and a power failure after some seconds."""
    while True:
        await asyncio.sleep(SYNC)
        await _quietly(service, service.store.audit.sync)


async def _tidy(service: GateService) -> None:
    """Retention, and a point of the trend: soon after the start, then every hour."""
    pause = SOON
    while True:
        await asyncio.sleep(pause)
        await _quietly(service, lambda: tidy(service))
        pause = TIDY


def tidy(service: GateService) -> None:
    """What is older than it may be goes; how things stand is kept."""
    store, counts = service.store, dict(service.decided)
    days = read_settings(store.folder).keep_days
    if not trend.points(store, store.clock() - 0.9 * TIDY):
        trend.keep(store, trend.point(store, counts))
        service.decided.subtract(counts)
    store.audit.retain(days)
    store.journal.expire(days)


async def _end_when_idle(service: GateService, seconds: float, end: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(min(5.0, seconds))
        if service.idle_seconds() > seconds:
            _say(f"no request for {seconds / 60:g} minutes; exiting")
            return end()


async def _quietly(service: GateService, work: Callable[[], Any]) -> None:
    """What fails beside the decisions is told, and tried again next time."""
    try:
        await asyncio.get_running_loop().run_in_executor(None, work)
    except Exception as error:
        _say(place_of(error) if not isinstance(error, OSError | ValueError) else str(error))


def _say(line: str) -> None:
    print(f"gradproof: {line}", file=sys.stderr, flush=True)
