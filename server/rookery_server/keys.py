"""Keys for CURVE, ZeroMQ's encryption: made once, kept in two folders.

DIR/server/server.key_secret     stays with the server
DIR/server/clients/NAME.key      the public keys of the clients it admits
DIR/client/client.key_secret     goes to the client, with
DIR/client/server.key            the server's public key
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import zmq
import zmq.auth

from rookery_server.errors import Unusable


def make_keys(folder: str) -> list[Path]:
    """Key pairs of a server and a client, in a folder that has none yet; the secret files."""
    root = Path(folder)
    server, client = root / "server", root / "client"
    for path in (server, client):
        if path.exists():
            raise Unusable(f"{path} exists already: keys are not written over")
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
    """Where the keys of a folder belong."""
    return (
        f"{folder}/server stays with the server: --bind ADDRESS --keys {folder}/server\n"
        f"{folder}/client goes to the client: --env.remote.keys {folder}/client"
    )


def secret_of(folder: str, name: str) -> tuple[bytes, bytes]:
    """The public and secret key in FOLDER/NAME.key_secret, which nobody else may read."""
    path = Path(folder) / f"{name}.key_secret"
    if not path.is_file():
        raise Unusable(f"there is no {path}: --make-keys DIR makes keys")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise Unusable(f"{path} can be read by others: chmod 600 {path}")
    public, secret = loaded(path)
    if secret is None:
        raise Unusable(f"{path} holds no secret key")
    return public, secret


def loaded(path: Path) -> tuple[bytes, Any]:
    """The keys in a file."""
    try:
        return zmq.auth.load_certificate(str(path))
    except (OSError, ValueError) as error:
        raise Unusable(f"{path} holds no key: {error}") from error


def lock(socket: zmq.Socket, context: zmq.Context, folder: str) -> Any:
    """Encrypt what a server's socket says, and admit only the keys in FOLDER/clients.

    Returns what checks them, to be stopped when the server ends.
    """
    from zmq.auth.thread import ThreadAuthenticator

    clients = Path(folder) / "clients"
    if not any(clients.glob("*.key")):
        raise Unusable(f"there is no client's key in {clients}: nobody could connect")
    public, secret = secret_of(folder, "server")
    doorman = ThreadAuthenticator(context)
    doorman.start()
    doorman.configure_curve(domain="*", location=str(clients))
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.curve_server = True
    return doorman


def unlock(socket: zmq.Socket, folder: str) -> None:
    """Let a client's socket speak to the server whose public key is in the folder."""
    public, secret = secret_of(folder, "client")
    path = Path(folder) / "server.key"
    if not path.is_file():
        raise Unusable(f"there is no {path}: it is the server's public key")
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.curve_serverkey = loaded(path)[0]
