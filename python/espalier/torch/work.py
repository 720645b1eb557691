"""Work: a pending call, in the form that torch expects.

The C++ code of torch keeps only the C++ half of a Work. A wait for a Work whose Python half was freed would never end. So a
group keeps every Work until wait() or get_future() was called.
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
    """`ranks` maps the communicator's ranks to world ranks, which the error names."""
    def world(rank):
        return ranks[rank] if 0 <= rank < len(ranks) else rank
    try:
        espalier._check(result)
    except espalier.Error as error:
        error.rank = world(error.rank)
        error.args = (_RANKS.sub(lambda found: f"{found[1]} {world(int(found[2]))}", str(error)),)
        raise


def _seconds(timeout):
    """torch passes None or zero for the default timeout of the call."""
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    return seconds if seconds > 0 else None


class Work(TorchWork):
    """`keep`: objects that must live until the call completes; `result`: the tensors it writes; `finish`: runs once at the end."""

    def __init__(self, group, handle, keep, result, finish=None):
        super().__init__()
        self._group, self._handle, self._keep, self._result, self._finish = group, handle, keep, result, finish
        self._error, self._ended, self._future = None, False, None
        self._lock = threading.Lock()

    def _end(self, seconds):
        """Waits and stores the result. False: not complete yet."""
        with self._lock:
            if self._ended:
                return True
            try:
                code = espalier._lib.esp_work_wait(self._handle, -1.0 if seconds is None else seconds)
                if code == _NOT_DONE:
                    return False
                check(code, self._group._ranks)
                if self._finish:
                    with torch.no_grad():  # the tensors may be parameters
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
            raise RuntimeError(f"espalier: timeout: the call did not complete in {seconds:g} s")
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
            return False  # another thread waits for this call
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
    """Thread that completes futures in call order, which is also the order of completion."""

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
            del work  # frees the Work before the next one arrives
