"""The server's socket: sizes, REQ clients, reconnection, keys, command line, and imports."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zmq
from rookery_server.__main__ import main
from rookery_server.errors import Unusable
from rookery_server.messages import MAX_HEADER_BYTES, decode, encode
from rookery_server.serving import HARD_LIMIT, Place, is_loopback
from rookery_server.sockets import load_secret, make_keys, use_client_keys
from served import ROOT, serving

from rookery.envs import EnvOptions, make_env
from rookery.envs.options import RemoteOptions
from rookery.errors import BadInput

SOURCES = sorted((ROOT / "server" / "rookery_server").glob("*.py"))


@pytest.fixture(scope="module")
def server():
    with serving("worlds:Old", "--envs", "4") as server:
        yield server


def ask(socket, header, arrays=()):
    socket.send_multipart(encode(header, arrays))
    assert socket.poll(10_000)
    return decode(socket.recv_multipart())


def hello(token, envs=1):
    return {"op": "hello", "session": token * 16, "seq": 0, "protocol": 1, "envs": envs}


@pytest.fixture
def socket(server):
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(server.address)
        yield socket


def test_a_request_socket_works_too(server):
    with zmq.Context() as context, context.socket(zmq.REQ) as request:
        request.linger = 0
        request.connect(server.address)
        assert ask(request, hello(b"q")).header["op"] == "hello"
        assert ask(request, {"op": "close", "session": b"q" * 16, "seq": 1}).header["op"] == "close"


def test_large_requests_are_refused_and_larger_ones_close_the_connection(server, socket):
    most = MAX_HEADER_BYTES + 4 * 8  # a header and the actions of four environments
    assert ask(socket, hello(b"l")).header["op"] == "hello"
    socket.send_multipart([b"x" * most, b"y"])
    assert socket.poll(10_000)
    assert decode(socket.recv_multipart()).header["kind"] == "size"
    socket.send_multipart([b"x" * (HARD_LIMIT * most + 1)])
    assert not socket.poll(300)
    # ZeroMQ made a new connection by itself; the session still exists.
    reply = ask(socket, {"op": "close", "session": b"l" * 16, "seq": 1})
    assert reply.header["op"] == "close"


def test_a_session_continues_over_another_connection(server, socket):
    ask(socket, hello(b"a"))
    ask(socket, {"op": "reset", "session": b"a" * 16, "seq": 1, "seed": 3})
    step = {"op": "step", "session": b"a" * 16, "seq": 2}
    first = ask(socket, step, [np.array([1])])
    with zmq.Context() as context, context.socket(zmq.DEALER) as other:
        other.linger = 0
        other.connect(server.address)
        again = ask(other, step, [np.array([1])])
        assert [a.tobytes() for a in again.arrays] == [a.tobytes() for a in first.arrays]
        assert ask(other, {"op": "close", "session": b"a" * 16, "seq": 3}).header["op"] == "close"


@pytest.mark.long
def test_environments_of_a_disconnected_client_are_freed(server):
    for _ in range(2):
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(server.address)
            limit = time.monotonic() + 30
            while ask(socket, hello(os.urandom(1), envs=4)).header["op"] != "hello":
                assert time.monotonic() < limit
                time.sleep(0.2)


def test_addresses_other_than_loopback_need_keys(capsys):
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    for address in ("0.0.0.0", "*", "::", "192.168.0.3", "eth0", "localhost.example.org"):
        assert not is_loopback(address)
        with pytest.raises(Unusable, match="--keys"):
            Place(bind=address).checked()
    assert main(["CartPole-v1", "--bind", "0.0.0.0", "--port", "0"]) == 2
    assert "--make-keys" in capsys.readouterr().err


def test_a_server_with_keys_admits_its_clients_and_nobody_else(tmp_path):
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        for secret in make_keys(str(folder)):
            assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    with serving("worlds:Old", "--bind", "0.0.0.0", "--keys", str(ours / "server")) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        env = make_env(address, with_keys(ours / "client"), num_envs=2)
        env.reset(seed=0)
        assert env.step(np.array([1, 2]))[1].tolist() == [1, 2]
        (others / "client" / "server.key").write_text((ours / "client" / "server.key").read_text())
        with pytest.raises(BadInput, match=r"env\.remote\.keys"):
            make_env(address, with_keys(others / "client"))
        with pytest.raises(BadInput, match=r"env\.remote\.keys|reached"):
            make_env(address)
        assert env.step(np.array([0, 1]))[1].tolist() == [0, 1]
        env.close()


def with_keys(folder: Path) -> EnvOptions:
    return EnvOptions(remote=RemoteOptions(keys=str(folder)))


def test_keys_are_not_overwritten_and_must_be_private(tmp_path):
    make_keys(str(tmp_path))
    with pytest.raises(Unusable, match="not overwritten"):
        make_keys(str(tmp_path))
    secret = tmp_path / "server" / "server.key_secret"
    secret.chmod(0o644)
    with pytest.raises(Unusable, match="chmod 600"):
        load_secret(str(tmp_path / "server"), "server")
    context = zmq.Context()
    with context.socket(zmq.DEALER) as socket, pytest.raises(Unusable, match="there is no"):
        use_client_keys(socket, str(tmp_path / "nowhere"))
    context.term()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "an environment is missing"),
        (["Nowhere-v0"], "not registered"),
        (["CartPole-v1", "--envs", "0"], "--envs must be"),
        (["CartPole-v1", "--port", "70000"], "--port must be"),
        (["CartPole-v1", "--kwargs", "[1]"], "--kwargs must be a JSON object"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, text, capsys):
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert text in told
    assert told.count("\n") == 1


def test_the_server_is_written_in_the_syntax_of_python_3_8():
    for path in SOURCES:
        ast.parse(path.read_text(), feature_version=(3, 8))


def test_the_server_imports_neither_torch_nor_rookery():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            assert not {name.split(".")[0] for name in names} & {"torch", "rookery"}
    code = (
        "import sys, rookery_server.__main__ as m; m.main(['CartPole-v1', '--envs', '0']);"
        " print({'torch', 'rookery'} & set(sys.modules))"
    )
    paths = os.environ | {"PYTHONPATH": str(ROOT / "server")}
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, env=paths).stdout
    assert output.splitlines()[-1] == "set()"
