"""ZeroMQ sockets of server and client: settings, messages, and keys for CURVE, their encryption.

Keys are in one folder for the server and one for the client:

DIR/server/server.key_secret     stays with the server
DIR/server/clients/NAME.key      the public keys of the clients it admits
DIR/client/client.key_secret     goes to the client, with
DIR/client/server.key            the server's public key
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Sequence

import zmq
import zmq.auth

from rookery_server.errors import Unusable

# As plain integers: an enum's own `|` takes longer than sending a frame.
SNDMORE, NOBLOCK = int(zmq.SNDMORE), int(zmq.NOBLOCK)
BUFFER_BYTES = 4 << 20
"""The system's buffers of a connection: a batch of images fits in."""
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 5_000, 30_000


def configure(socket: zmq.Socket) -> None:
    """Set the options that server and client share, before the socket is bound or connected."""
    socket.linger = 0
    socket.sndbuf = socket.rcvbuf = BUFFER_BYTES
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS


def receive_frames(socket: zmq.Socket, most: int | None = None) -> list[zmq.Frame]:
    """Return the frames of a message, not copied, of more than `most` only the first and the last.

    Raises `zmq.Again` if none comes within the socket's `rcvtimeo`.
    """
    frames = [socket.recv(copy=False)]
    while frames[-1].more:
        if most is not None and len(frames) > most:
            frames.pop()
        frames.append(socket.recv(copy=False))
    return frames


def send_frames(socket: zmq.Socket, frames: Sequence[Any], flags: int = 0) -> None:
    """Send a message; libzmq copies its frames."""
    more = flags | SNDMORE
    for frame in frames[:-1]:
        socket.send(frame, more)
    socket.send(frames[-1], flags)


def make_keys(folder: str) -> list[Path]:
    """Make key pairs of a server and a client; return the paths of the secret files."""
    root = Path(folder)
    server, client = root / "server", root / "client"
    for path in (server, client):
        if path.exists():
            raise Unusable(f"{path} already exists: keys are not overwritten")
    before = os.umask(0o077)
    try:
        (server / "clients").mkdir(parents=True)
        client.mkdir()
        public, server_secret = zmq.auth.create_certificates(str(server), "server")
        shutil.move(public, str(client / "server.key"))
        public, client_secret = zmq.auth.create_certificates(str(client), "client")
        shutil.move(public, str(server / "clients" / "client.key"))
    finally:
        os.umask(before)
    return [Path(server_secret), Path(client_secret)]


def describe_keys(folder: str) -> str:
    """Return text that says where the keys of a folder belong."""
    return (
        f"{folder}/server stays with the server: --bind ADDRESS --keys {folder}/server\n"
        f"{folder}/client goes to the client: --env.remote.keys {folder}/client"
    )


def load_secret(folder: str, name: str) -> tuple[bytes, bytes]:
    """Return the public and secret key in FOLDER/NAME.key_secret.

    Raises if other users can read the file.
    """
    path = Path(folder) / f"{name}.key_secret"
    if not path.is_file():
        raise Unusable(f"there is no {path}: --make-keys DIR makes keys")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise Unusable(f"{path} is readable by other users: chmod 600 {path}")
    public, secret = load_key(path)
    if secret is None:
        raise Unusable(f"{path} contains no secret key")
    return public, secret


def load_key(path: Path) -> tuple[bytes, Any]:
    """Return the public and secret key in a file; the secret one may be None."""
    try:
        return zmq.auth.load_certificate(str(path))
    except (OSError, ValueError) as error:
        raise Unusable(f"{path} contains no key: {error}") from error


def require_client_keys(socket: zmq.Socket, context: zmq.Context, folder: str) -> Any:
    """Encrypt a server's socket and admit only clients whose keys are in FOLDER/clients.

    Returns the authenticator, which must be stopped when the server ends.
    """
    from zmq.auth.thread import ThreadAuthenticator

    clients = Path(folder) / "clients"
    if not any(clients.glob("*.key")):
        raise Unusable(f"no client key in {clients}: no client could connect")
    public, secret = load_secret(folder, "server")
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve(domain="*", location=str(clients))
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.curve_server = True
    return authenticator


def use_client_keys(socket: zmq.Socket, folder: str) -> None:
    """Set a client's keys on its socket, and the public key of the server it connects to."""
    public, secret = load_secret(folder, "client")
    path = Path(folder) / "server.key"
    if not path.is_file():
        raise Unusable(f"there is no {path}: it is the server's public key")
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.curve_serverkey = load_key(path)[0]
