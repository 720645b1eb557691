"""Messages from one rank to another. Sends and receives may be started in any order among peers, where calls on one
communicator go one after the other; so every (sender, receiver) has a communicator of two and a thread, made when it is
first used. Between two ranks messages pair in the order they were started."""
import queue
import threading

import torch
from torch._C._distributed_c10d import Work as TorchWork

import espalier
from espalier.torch.meeting import meet
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
            raise RuntimeError(f"espalier: not done after {seconds:g} s")
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


class Link:
    """One direction between two ranks, on its thread. `sending`: this end is the sender. `ranks`: the world's of both.
    `look`: raises once a rank is known to be lost."""

    def __init__(self, store, sender, receiver, sending, ranks, timeout_s, options, look):
        self._abandoned, self._ranks = threading.Event(), ranks
        self._meeting = (store, f"link/{sender}/{receiver}", 0 if sending else 1, ranks, timeout_s, options, look,
                         self._abandoned)
        self._works, self._comm = queue.SimpleQueue(), None
        self._thread = threading.Thread(target=self._run, name=f"espalier-link-{sender}-{receiver}", daemon=True)
        self._thread.start()

    def add(self, work):
        self._works.put(work)

    def stop(self):
        """Messages that were started are still delivered, unless they are abandoned."""
        self._works.put(None)

    def join(self):
        """A thread that is still in torch's store when the interpreter ends would take the process with it, so it is waited
        for; one that the library has for a peer to come is left."""
        if threading.current_thread() is not self._thread:
            self._thread.join(_LEAVE_AFTER_S if self._abandoned.is_set() and self._comm is None else None)

    def abandon(self):
        self._abandoned.set()
        if self._comm:
            espalier._lib.esp_abort(self._comm, b"the process ends with messages under way")

    def _run(self):
        error = None
        while (work := self._works.get()) is not None:
            if self._comm is None and error is None:
                try:
                    self._comm = meet(*self._meeting)
                except Exception as caught:
                    error = caught
            if error:
                work._fail(error)
            else:
                work._run(self._comm, self._ranks)
            del work
        espalier._lib.esp_finalize(self._comm)
