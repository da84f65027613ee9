"""A stand-in for Ray: workers are in this process and answer at once; a test says what is lost."""

from __future__ import annotations

import copy
import threading
from contextlib import nullcontext

import ray
from ray.exceptions import ActorDiedError, ObjectLostError

from rookery.backends.ray import cluster
from rookery.backends.ray.messages import WorkerPlace
from rookery.backends.ray.workers import Worker

NODE = "ab" * 28


class Reference:
    """What a call came to: a value, or the error that getting it raises."""

    def __init__(self, value=None, error=None):
        self.value, self.error = value, error

    def lose(self):
        """As if the node had died where the value lay."""
        self.error = ObjectLostError("00", "", "")

    def get(self):
        if self.error is not None:
            raise self.error
        return self.value


class Handle:
    """A Ray actor: one call at a time, and none once it is dead."""

    def __init__(self, here, worker):
        self.here, self.worker = here, worker
        self.lock = threading.Lock()
        self.dead = False

    def __getattr__(self, name):
        return Method(self, name)

    def call(self, name, count, args):
        with self.lock:
            try:
                if self.dead:
                    raise ActorDiedError
                given = [arg.get() if isinstance(arg, Reference) else arg for arg in args]
                answer = getattr(self.worker, name)(*given)
            except ray.exceptions.RayError as error:
                made = [Reference(error=error) for _ in range(count)]
            else:
                made = [Reference(part) for part in (answer if count > 1 else [answer])]
        self.here.called(self.worker, name, made)
        return made if count > 1 else made[0]


class Method:
    def __init__(self, handle, name, count=1):
        self.handle, self.name, self.count = handle, name, count

    def options(self, num_returns):
        return Method(self.handle, self.name, num_returns)

    def remote(self, *args):
        return self.handle.call(self.name, self.count, args)


class Kind:
    """A class whose instances become Ray actors."""

    def __init__(self, here, worker):
        self.here, self.worker = here, worker

    def options(self, **needs):
        return self

    def remote(self, *args):
        # Copied: processes share no memory.
        self.here.handles.append(Handle(self.here, self.worker(*copy.deepcopy(args))))
        return self.here.handles[-1]


class Here:
    """The cluster."""

    def __init__(self, monkeypatch):
        self.handles = []
        self.cpus = 64
        self.called = lambda worker, name, made: None
        """Told of every call: the worker, the method, and the references to what it came to."""
        for name in ("put", "get", "wait", "kill", "nodes", "available_resources"):
            monkeypatch.setattr(ray, name, getattr(self, name))
        monkeypatch.setattr(ray, "remote", lambda worker: Kind(self, worker))
        monkeypatch.setattr(cluster, "connected", lambda *about: nullcontext())
        here = WorkerPlace(NODE, "here", 1, "cpu", 1)
        monkeypatch.setattr(Worker, "place", lambda worker, *device: here)

    def workers(self, kind):
        """The living workers of a kind, oldest first."""
        return [h.worker for h in self.handles if isinstance(h.worker, kind) and not h.dead]

    def end(self, worker):
        """Let the process of a worker die."""
        (handle,) = (handle for handle in self.handles if handle.worker is worker)
        self.kill(handle)

    def put(self, value):
        return Reference(value)

    def get(self, reference):
        return reference.get()

    def wait(self, references, num_returns, timeout):
        return references[:num_returns], references[num_returns:]

    def kill(self, handle):
        handle.dead = True
        if hasattr(handle.worker, "prefetch"):
            handle.worker.prefetch.stop()

    def nodes(self):
        return [{"Alive": True, "NodeID": NODE, "Resources": self.available_resources()}]

    def available_resources(self):
        return {"CPU": float(self.cpus)}
