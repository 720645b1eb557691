"""Rendezvous of a group's ranks: rank 0 writes its listening address into torch's store.

A blocking get of the store blocks other threads of the process, possibly the very thread that the peer waits for.
Therefore this module polls.
"""
import ctypes
import os
import socket
import threading
import time

import espalier
from espalier.torch.work import check

_CHECK_EVERY_S = 0.5


class Cancelled(Exception):
    pass


def put(store, key, text):
    store.set(key, text)
    store.add(key + "/there", 1)


def wait_for_key(store, key, rank, deadline, check_lost, cancelled):
    """Polls for the value that the rank writes. `check_lost` raises an error once the rank is lost."""
    pause, next_check = 0.0005, time.monotonic() + _CHECK_EVERY_S
    while store.add(key + "/there", 0) == 0:
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"espalier: timeout: rank {rank} has not joined the process group. Look at its output")
        if now > next_check:
            check_lost()
            next_check = now + _CHECK_EVERY_S
        if cancelled.wait(pause):
            raise Cancelled(f"espalier: waiting for rank {rank} was cancelled")
        pause = min(2 * pause, 0.05)
    return store.get(key).decode()


def _this_host():
    """A text that is equal on two ranks exactly if they can connect over loopback."""
    with open("/proc/sys/kernel/random/boot_id") as boot:
        return f"{boot.read().strip()} {os.stat('/proc/self/ns/net').st_ino} {os.getuid()}"


def _address(store, key, ranks, *until):
    hosts = {wait_for_key(store, f"{key}/host/{rank}", ranks[rank], *until) for rank in range(1, len(ranks))}
    if hosts <= {_this_host()}:
        return "127.0.0.1"
    return os.environ.get("MASTER_ADDR") or socket.gethostbyname(socket.gethostname())


def join_communicator(store, key, rank, ranks, timeout_s, options, check_lost, cancelled=None):
    """Creates a communicator of the C library among the callers with the same key; `ranks`: their world ranks. Waiting for
    the store ends when `check_lost` raises an error or the event `cancelled` is set."""
    size = len(ranks)
    until = (time.monotonic() + timeout_s, check_lost, cancelled or threading.Event())
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
        # Holds the port until the library listens on it.
        with socket.socket(socket.AF_INET) as ours:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ours.bind(("127.0.0.1" if address == "127.0.0.1" else "", 0))
            port = ours.getsockname()[1]
            put(store, f"{key}/place", f"{address} {port}")
            join(address, port)
    else:
        put(store, f"{key}/host/{rank}", _this_host())
        address, port = wait_for_key(store, f"{key}/place", ranks[0], *until).split()
        join(address, int(port))
    return handle
