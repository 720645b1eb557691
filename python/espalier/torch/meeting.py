"""How the ranks of a group find each other: rank 0 writes where it listens into torch's store.

A store's blocking get keeps other threads of the process out of the store, and a thread that waits for a peer could so
keep out the very thread the peer waits for. What is awaited is therefore asked for again and again.
"""
import ctypes
import os
import socket
import threading
import time

import espalier
from espalier.torch.work import check

_LOOK_EVERY_S = 0.5


class GivenUp(Exception):
    pass


def put(store, key, text):
    store.set(key, text)
    store.add(key + "/there", 1)


def await_key(store, key, rank, deadline, look, give_up):
    """What the rank writes. `look` raises once it is known not to come."""
    pause, look_at = 0.0005, time.monotonic() + _LOOK_EVERY_S
    while store.add(key + "/there", 0) == 0:
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"espalier: rank {rank} did not come in time: nobody wrote \"{key}\" into the store")
        if now > look_at:
            look()
            look_at = now + _LOOK_EVERY_S
        if give_up.wait(pause):
            raise GivenUp(f"espalier: \"{key}\" is not awaited any more")
        pause = min(2 * pause, 0.05)
    return store.get(key).decode()


def _this_host():
    """The same text on two ranks exactly when they can meet on loopback."""
    with open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()} {os.stat('/proc/self/ns/net').st_ino} {os.getuid()}"


def _address(store, key, ranks, *until):
    hosts = {await_key(store, f"{key}/host/{rank}", ranks[rank], *until) for rank in range(1, len(ranks))}
    if hosts <= {_this_host()}:
        return "127.0.0.1"
    return os.environ.get("MASTER_ADDR") or socket.gethostbyname(socket.gethostname())


def meet(store, key, rank, ranks, timeout_s, options, look, give_up=None):
    """A communicator of the C library among those who call this with one key; `ranks` has the world's rank of each. Waiting
    for their words in the store ends when `look` raises or the event `give_up` is set."""
    size = len(ranks)
    until = (time.monotonic() + timeout_s, look, give_up or threading.Event())
    options = f"timeout_s={timeout_s:g};{options}"
    handle = ctypes.c_void_p()

    def join(address, port):
        secret = os.environ.get("ESPALIER_SECRET_FILE") if address != "127.0.0.1" else None
        check(espalier._lib.esp_init_rank(rank, size, address.encode(), port, secret and secret.encode(),
                                          espalier._text(options, "options"), ctypes.byref(handle)), ranks)

    if size == 1:
        join("127.0.0.1", 0)
    elif rank == 0:
        address = _address(store, key, ranks, *until)
        # The port stays ours, and nobody else's, until the library listens on it.
        with socket.socket(socket.AF_INET) as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ours.bind(("127.0.0.1" if address == "127.0.0.1" else "", 0))
            port = ours.getsockname()[1]
            put(store, f"{key}/place", f"{address} {port}")
            join(address, port)
    else:
        put(store, f"{key}/host/{rank}", _this_host())
        address, port = await_key(store, f"{key}/place", ranks[0], *until).split()
        join(address, int(port))
    return handle
