"""Point-to-point messages. Sends and receives to different peers may start in any order, but calls on one communicator run
one after another. So every (sender, receiver) pair has a communicator of two ranks and a thread, created on first use.
Messages between two ranks match in the order they were started."""
import queue
import threading

import torch
from torch._C._distributed_c10d import Work as TorchWork

import espalier
from espalier.torch.rendezvous import join_communicator
from espalier.torch.work import _seconds, check


_LEAVE_AFTER_S = 1


class MessageWork(TorchWork):
    def __init__(self, group, tensor, call, finish, source):
        super().__init__()
        self._group, self._tensor, self._call, self._finish, self._source = group, tensor, call, finish, source
        self._done, self._error, self._future = threading.Event(), None, torch.futures.Future()

    def _run(self, comm, ranks):
        try:
            check(self._call(comm), ranks)
            if self._finish:
                with torch.no_grad():
                    self._finish()
        except Exception as error:
            self._fail(error)
            return
        self._done.set()
        self._future.set_result([self._tensor])

    def _fail(self, error):
        self._error = error
        self._done.set()
        self._future.set_exception(error)

    def wait(self, timeout=None):
        seconds = _seconds(timeout)
        if not self._done.wait(seconds):
            raise RuntimeError(f"espalier: timeout: the message did not complete in {seconds:g} s")
        self._group._forget(self)
        if self._error:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return self._done.is_set()

    def is_success(self):
        return self._done.is_set() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return [self._tensor]

    def source_rank(self):
        return self._source

    def get_future(self):
        self._group._forget(self)
        return self._future


class PeerChannel:
    """One direction between two ranks, with its own thread. `sending`: this end is the sender. `ranks`: world ranks of both.
    `check_lost`: raises an error once a rank is lost."""

    def __init__(self, store, sender, receiver, sending, ranks, timeout_s, options, check_lost):
        self._abandoned, self._ranks = threading.Event(), ranks
        self._join_arguments = (store, f"link/{sender}/{receiver}", 0 if sending else 1, ranks, timeout_s, options, check_lost,
                         self._abandoned)
        self._works, self._comm = queue.SimpleQueue(), None
        self._thread = threading.Thread(target=self._run, name=f"espalier-link-{sender}-{receiver}", daemon=True)
        self._thread.start()

    def add(self, work):
        self._works.put(work)

    def stop(self):
        """Started messages are still delivered, unless they are abandoned."""
        self._works.put(None)

    def join(self):
        """Waits for a thread that uses torch's store: it would crash the process at interpreter exit. A thread that waits for
        a peer inside the library is left alone."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_LEAVE_AFTER_S if self._abandoned.is_set() and self._comm is None else None)

    def abandon(self):
        self._abandoned.set()
        if self._comm:
            espalier._lib.esp_abort(self._comm, b"the process exits with pending messages")

    def _run(self):
        error = None
        while (work := self._works.get()) is not None:
            if self._comm is None and error is None:
                try:
                    self._comm = join_communicator(*self._join_arguments)
                except Exception as caught:
                    error = caught
            if error:
                work._fail(error)
            else:
                work._run(self._comm, self._ranks)
            del work
        espalier._lib.esp_finalize(self._comm)
