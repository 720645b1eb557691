"""A process group whose calls are those of the C library. torch's C++ parts reach allreduce, broadcast, allgather,
reduce_scatter, barrier, send and recv; torch's Python reaches them all.

Calls return at once: the library works in order on a thread of its own. Tensors that are not contiguous, and lists where
the library has one array, go through a copy.
"""
import atexit
import ctypes
import itertools
import threading
import weakref

import torch
from torch._C._distributed_c10d import ProcessGroup as TorchProcessGroup
from torch.distributed import ReduceOp

import espalier
from espalier.torch.link import Link, MessageWork
from espalier.torch.meeting import meet
from espalier.torch.work import Completer, Work

_lib = espalier._lib
_DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.int64: 4, torch.int32: 5,
           torch.int16: 6, torch.int8: 7, torch.uint8: 8}
_BYTES = 8
_OPS = [(ReduceOp.SUM, 0), (ReduceOp.PRODUCT, 1), (ReduceOp.MIN, 2), (ReduceOp.MAX, 3), (ReduceOp.AVG, 4)]
_MOST_KEPT = 1024
_ending = []  # threads that end groups
_groups = weakref.WeakSet()


@atexit.register
def _end_all():
    """A model may hold its group until the very end, when threads of the library must not run any more."""
    for group in list(_groups):
        group._end(abandon=True)
    for thread in _ending:
        thread.join()


class _Parts:
    """What a group has open."""

    def __init__(self, comm):
        self.comm, self.links, self.completer = comm, {}, None
        self.kept = {}  # works nobody has waited for

    def end(self, abandon):
        """Calls under way are waited for, or given up where the process ends anyway."""
        if abandon and not all(work.is_completed() for work in list(self.kept.values())):
            _lib.esp_abort(self.comm, b"the process ends with calls under way")
            for link in self.links.values():
                link.abandon()
        for link in self.links.values():
            link.stop()
        for link in self.links.values():  # peers end theirs in another order
            link.join()
        if self.completer:
            self.completer.stop()
        for work in list(self.kept.values()):
            if isinstance(work, Work):
                work._end(None)  # its tensors are being written
        _lib.esp_finalize(self.comm)


def _op(opts):
    for op, number in _OPS:
        if opts.reduceOp == op:
            return number
    raise ValueError("espalier reduces by SUM, AVG, PRODUCT, MIN and MAX")


def _checked(tensor):
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"espalier moves dense CPU tensors; this one is {tensor.layout} on {tensor.device}")
    return tensor


def _dtype(tensor):
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"espalier cannot reduce {tensor.dtype}; known: {', '.join(map(str, _DTYPES))}")
    return _DTYPES[tensor.dtype]


def _one(tensors):
    if len(tensors) != 1:
        raise ValueError(f"espalier takes one tensor per call, not {len(tensors)}")
    return _checked(tensors[0])


def _flat(tensors):
    """All elements one after the other, in a copy."""
    return torch.cat([_checked(tensor).reshape(-1) for tensor in tensors])


def _like(tensors):
    """Room for all their elements one after the other."""
    return torch.empty(sum(_checked(t).numel() for t in tensors), dtype=tensors[0].dtype)


def _spread(flat, tensors):
    for part, tensor in zip(flat.split([t.numel() for t in tensors]), tensors):
        tensor.copy_(part.view(tensor.shape))


def _bytes(tensor):
    return tensor.numel() * tensor.element_size()


def _sizes(counts):
    return (ctypes.c_size_t * len(counts))(*counts)


def _offsets(counts):
    return _sizes([0, *itertools.accumulate(counts)][:len(counts)])


class ProcessGroup(TorchProcessGroup):
    def __init__(self, store, rank, size, timeout, options):
        super().__init__(rank, size)
        self._store, self._options, self._timeout_s = store, options, timeout.total_seconds()
        self._parts = _Parts(meet(store, "world", rank, size, self._timeout_s, options))
        self._lock = threading.Lock()  # guards the parts, and that one thread at a time calls
        self._sequence = 0
        _groups.add(self)

    def __del__(self):
        self._end()

    def _end(self, abandon=False):
        # Rank 0 stays until the others have left, which may be long after: not on a thread that is needed meanwhile.
        parts, self._parts = getattr(self, "_parts", None), None
        if parts:
            _ending[:] = [thread for thread in _ending if thread.is_alive()]
            _ending.append(threading.Thread(target=parts.end, args=(abandon,), name="espalier-end", daemon=True))
            _ending[-1].start()

    # -- works ----------------------------------------------------------------------------------------------------

    def _keep(self, work):
        kept = self._parts.kept
        kept[id(work)] = work
        if len(kept) > _MOST_KEPT:  # somebody never waits; what ended long ago nobody will wait for
            for other in list(kept.values())[:_MOST_KEPT // 2]:
                if other.is_completed():
                    del kept[id(other)]
        return work

    def _forget(self, work):
        with self._lock:
            if self._parts:
                self._parts.kept.pop(id(work), None)

    def _complete(self, work):
        with self._lock:
            self._parts.completer = self._parts.completer or Completer()
            self._parts.completer.add(work)

    def _start(self, function, keep, result, *arguments, finish=None):
        handle = ctypes.c_void_p()
        with self._lock:
            espalier._check(function(self._parts.comm, *arguments, ctypes.byref(handle)))
            self._sequence += 1
            return self._keep(Work(self, handle, keep, result, finish))

    def _in_place(self, function, tensor, count, *rest):
        """A call that reads and writes one tensor; `rest` follows the count."""
        used = tensor if tensor.is_contiguous() else tensor.contiguous()
        finish = None if used is tensor else lambda: tensor.copy_(used)
        pointers = (used.data_ptr(),) if function is _lib.esp_broadcast else (used.data_ptr(), used.data_ptr())
        return self._start(function, (tensor, used), [tensor], *pointers, count, *rest, finish=finish)

    # -- collectives ------------------------------------------------------------------------------------------------

    def getBackendName(self):
        return "espalier"

    def allreduce(self, tensors, opts):
        tensor = _one(tensors)
        return self._in_place(_lib.esp_all_reduce, tensor, tensor.numel(), _dtype(tensor), _op(opts))

    def allreduce_coalesced(self, tensors, opts):
        flat = _flat(tensors)
        return self._start(_lib.esp_all_reduce, (tensors, flat), tensors, flat.data_ptr(), flat.data_ptr(), flat.numel(),
                           _dtype(flat), _op(opts), finish=lambda: _spread(flat, tensors))

    def broadcast(self, tensors, opts):
        tensor = _one(tensors)
        return self._in_place(_lib.esp_broadcast, tensor, _bytes(tensor), _BYTES, opts.rootRank)

    def reduce(self, tensors, opts):
        tensor = _one(tensors)
        return self._in_place(_lib.esp_reduce, tensor, tensor.numel(), _dtype(tensor), _op(opts), opts.rootRank)

    def _allgather_base(self, output, tensor, opts=None):
        used, flat = _checked(tensor).contiguous(), _checked(output).contiguous()
        if output.numel() != self.size() * tensor.numel():
            raise ValueError(f"{output.numel()} elements cannot take {tensor.numel()} of each of {self.size()} ranks")
        finish = None if flat is output else lambda: output.copy_(flat)
        return self._start(_lib.esp_all_gather, (used, flat, output), [output], used.data_ptr(), flat.data_ptr(),
                           _bytes(used), _BYTES, finish=finish)

    def allgather(self, outputs, tensors, opts=None):
        tensor, (parts,) = _one(tensors).contiguous(), outputs
        flat = _like(parts)
        if len(parts) != self.size() or flat.numel() != self.size() * tensor.numel():
            raise ValueError(f"{len(parts)} tensors cannot take {tensor.numel()} elements of each of {self.size()} ranks")
        return self._start(_lib.esp_all_gather, (tensor, flat, parts), parts, tensor.data_ptr(), flat.data_ptr(),
                           _bytes(tensor), _BYTES, finish=lambda: _spread(flat, parts))

    def allgather_coalesced(self, outputs, tensors, opts=None):
        flat = _flat(tensors)
        all_of_them = torch.empty(self.size() * flat.numel(), dtype=flat.dtype)

        def finish():
            for rank, part in enumerate(all_of_them.split(flat.numel())):
                _spread(part, outputs[rank])
        return self._start(_lib.esp_all_gather, (flat, all_of_them), outputs, flat.data_ptr(), all_of_them.data_ptr(),
                           _bytes(flat), _BYTES, finish=finish)

    def _reduce_scatter_base(self, output, tensor, opts):
        used, part = _checked(tensor).contiguous(), _checked(output).contiguous()
        if tensor.numel() != self.size() * output.numel():
            raise ValueError(f"{tensor.numel()} elements do not give {output.numel()} to each of {self.size()} ranks")
        finish = None if part is output else lambda: output.copy_(part)
        return self._start(_lib.esp_reduce_scatter, (used, part, output), [output], used.data_ptr(), part.data_ptr(),
                           part.numel(), _dtype(part), _op(opts), finish=finish)

    def reduce_scatter(self, outputs, inputs, opts):
        return self._reduce_scatter_base(_one(outputs), _flat(inputs[0]), opts)

    def gather(self, outputs, tensors, opts):
        tensor, root = _one(tensors).contiguous(), opts.rootRank
        parts = outputs[0] if root == self.rank() else []
        flat = _like(parts) if parts else None
        return self._start(_lib.esp_gather, (tensor, flat, parts), parts, tensor.data_ptr(),
                           flat.data_ptr() if parts else None, _bytes(tensor), _BYTES, root,
                           finish=lambda: parts and _spread(flat, parts))

    def scatter(self, outputs, inputs, opts):
        output, root = _one(outputs), opts.rootRank
        flat = _flat(inputs[0]) if root == self.rank() else None
        part = output.contiguous()
        finish = None if part is output else lambda: output.copy_(part)
        return self._start(_lib.esp_scatter, (flat, part, output), [output], None if flat is None else flat.data_ptr(),
                           part.data_ptr(), _bytes(part), _BYTES, root, finish=finish)

    def alltoall(self, outputs, inputs, opts=None):
        flat_in, flat_out = _flat(inputs), _like(outputs)
        return self._exchange(flat_in, [_bytes(t) for t in inputs], flat_out, [_bytes(t) for t in outputs], outputs,
                              lambda: _spread(flat_out, outputs))

    def alltoall_base(self, output, tensor, output_splits, input_splits, opts=None):
        used, out = _checked(tensor).contiguous(), _checked(output).contiguous()

        def counts(whole, splits):
            if not splits:
                return [_bytes(whole) // self.size()] * self.size()
            row = _bytes(whole) // max(whole.shape[0], 1)
            return [rows * row for rows in splits]
        finish = None if out is output else lambda: output.copy_(out)
        return self._exchange(used, counts(used, input_splits), out, counts(out, output_splits), [output], finish)

    def _exchange(self, tensor, send, out, receive, result, finish):
        if (sum(send), sum(receive)) != (_bytes(tensor), _bytes(out)):
            raise ValueError(f"the parts do not add up to the tensors for {self.size()} ranks")
        arrays = (_sizes(send), _offsets(send), _sizes(receive), _offsets(receive))
        return self._start(_lib.esp_all_to_all_v, (tensor, out, arrays), result, tensor.data_ptr(), arrays[0], arrays[1],
                           out.data_ptr(), arrays[2], arrays[3], _BYTES, finish=finish)

    def barrier(self, opts=None):
        return self._start(_lib.esp_barrier, (), [])

    # -- messages ---------------------------------------------------------------------------------------------------

    def _message(self, function, tensor, peer, tag, sending):
        if tag:
            raise ValueError("espalier pairs messages by their order and has no tags")
        used = tensor if tensor.is_contiguous() else tensor.contiguous()
        finish = (lambda: tensor.copy_(used)) if used is not tensor and not sending else None
        ends = (self.rank(), peer) if sending else (peer, self.rank())

        def call(comm):
            return function(comm, used.data_ptr(), _bytes(used), _BYTES, 1 if sending else 0, None)
        with self._lock:
            links = self._parts.links
            if ends not in links:
                links[ends] = Link(self._store, *ends, sending, self._timeout_s, self._options)
            work = self._keep(MessageWork(self, tensor, call, finish, peer))
            links[ends].add(work)
            return work

    def send(self, tensors, peer, tag=0):
        return self._message(_lib.esp_send, _one(tensors), peer, tag, True)

    def recv(self, tensors, peer, tag=0):
        return self._message(_lib.esp_recv, _one(tensors), peer, tag, False)

    def recv_anysource(self, tensors, tag=0):
        raise ValueError("espalier receives from a rank that is named: recv(tensor, src=…)")

    # -- what torch asks besides ----------------------------------------------------------------------------------------

    def _start_coalescing(self):
        """Messages of a batch never block each other here: nothing to do."""

    def _end_coalescing(self, works):
        pass

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return self._sequence
