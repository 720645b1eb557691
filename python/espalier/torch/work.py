"""Calls under way, as torch sees them.

torch's C++ parts keep the C++ half of a Work only; once the Python half is gone, waiting for it would never end. So a
group keeps every Work until somebody has waited for it or taken its future, which is what those parts do.
"""
import ctypes
import queue
import re
import threading

import torch
from torch._C._distributed_c10d import Work as TorchWork

import espalier

_NOT_DONE = 5
_RANKS = re.compile(r"\b(rank|root|send of \d+ \w+ to|recv of \d+ \w+ from) (\d+)\b")


def check(result, ranks):
    """`ranks` has the world's rank of each of the communicator's, and the error names those."""
    def world(rank):
        return ranks[rank] if 0 <= rank < len(ranks) else rank
    try:
        espalier._check(result)
    except espalier.Error as error:
        error.rank = world(error.rank)
        error.args = (_RANKS.sub(lambda found: f"{found[1]} {world(int(found[2]))}", str(error)),)
        raise


def _seconds(timeout):
    """torch says None or zero where it means: as long as the call may take."""
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    return seconds if seconds > 0 else None


class Work(TorchWork):
    """`keep` is what must live until the call is done; `result` the tensors it writes; `finish` runs once at its end."""

    def __init__(self, group, handle, keep, result, finish=None):
        super().__init__()
        self._group, self._handle, self._keep, self._result, self._finish = group, handle, keep, result, finish
        self._error, self._ended, self._future = None, False, None
        self._lock = threading.Lock()

    def _end(self, seconds):
        """Waits; remembers how it ended. False: not done yet."""
        with self._lock:
            if self._ended:
                return True
            try:
                code = espalier._lib.esp_work_wait(self._handle, -1.0 if seconds is None else seconds)
                if code == _NOT_DONE:
                    return False
                check(code, self._group._ranks)
                if self._finish:
                    with torch.no_grad():  # parameters are written too
                        self._finish()
            except Exception as error:
                self._error = error
            self._ended = True
            espalier._lib.esp_work_free(self._handle)
            self._keep = self._finish = None
            return True

    def wait(self, timeout=None):
        seconds = _seconds(timeout)
        if not self._end(seconds):
            raise RuntimeError(f"espalier: not done after {seconds:g} s")
        self._group._forget(self)
        if self._error:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if self._ended:
            return True
        if not self._lock.acquire(blocking=False):
            return False  # another thread waits for it
        try:
            done = ctypes.c_int(1)
            if not self._ended:
                espalier._check(espalier._lib.esp_work_test(self._handle, ctypes.byref(done)))
        finally:
            self._lock.release()
        return bool(done.value) and self._end(None)

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._result

    def source_rank(self):
        return self._group.rank()

    def get_future(self):
        if self._future is None:
            self._future = torch.futures.Future()
            self._group._complete(self)
        self._group._forget(self)
        return self._future

    def _fulfil(self):
        self._end(None)
        if self._error:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(self._result)


class Completer:
    """The thread that fulfils futures, in the order calls were made, which is the order they end in."""

    def __init__(self):
        self._works = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="espalier-futures", daemon=True)
        self._thread.start()

    def add(self, work):
        self._works.put(work)

    def stop(self):
        self._works.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self):
        while (work := self._works.get()) is not None:
            work._fulfil()
            del work  # not kept until the next one comes
