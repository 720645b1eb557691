"""ProcessGroup: a torch process group on the C library. torch's C++ code uses allreduce, broadcast, allgather, reduce_scatter, barrier,
send and recv; torch's Python code uses all calls.

Calls return at once: the library executes them in order on its own thread. Non-contiguous tensors, and lists for which
the library takes one array, are copied.
"""
import atexit
import ctypes
import functools
import itertools
import os
import threading
import weakref

import torch
from torch._C._distributed_c10d import ProcessGroup as TorchProcessGroup
from torch.distributed import ReduceOp

import espalier
from espalier.torch.point_to_point import MessageWork, PeerChannel
from espalier.torch.rendezvous import join_communicator
from espalier.torch.work import Completer, Work, check

_lib = espalier._lib
_DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.int64: 4, torch.int32: 5,
           torch.int16: 6, torch.int8: 7, torch.uint8: 8}
_BYTES = 8
_OPS = [(ReduceOp.SUM, 0), (ReduceOp.PRODUCT, 1), (ReduceOp.MIN, 2), (ReduceOp.MAX, 3), (ReduceOp.AVG, 4)]
_MOST_KEPT = 1024
_ending = []  # threads that end groups
_groups = weakref.WeakSet()
_first = None  # weak reference to the first group, usually the world; others are created within it


@atexit.register
def _end_all():
    """Ends all groups: a model may hold its group until interpreter exit, when threads of the library must not run."""
    for group in list(_groups):
        group._end(abandon=True)
    for thread in _ending:
        thread.join()


class _Parts:
    """Resources of a group."""

    def __init__(self, comm):
        self.comm, self.links, self.completer = comm, {}, None
        self.process = os.getpid()
        self.kept = {}  # pending works

    def end(self, abandon):
        """Waits for pending calls, or aborts them if the process is exiting."""
        if abandon and not all(work.is_completed() for work in list(self.kept.values())):
            _lib.esp_abort(self.comm, b"the process exits with pending calls")
            for link in self.links.values():
                link.abandon()
        for link in self.links.values():
            link.stop()
        for link in self.links.values():  # peers end their channels in a different order
            link.join()
        if self.completer:
            self.completer.stop()
        for work in list(self.kept.values()):
            if isinstance(work, Work):
                work._end(None)  # the library may still write its tensors
        _lib.esp_finalize(self.comm)


def _op(opts):
    for op, number in _OPS:
        if opts.reduceOp == op:
            return number
    raise ValueError("op: not supported; espalier supports SUM, AVG, PRODUCT, MIN and MAX")


def _checked(tensor):
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise ValueError(f"tensor: got {tensor.layout} on {tensor.device}; espalier supports dense CPU tensors")
    return tensor


def _dtype(tensor):
    if tensor.dtype not in _DTYPES:
        raise ValueError(f"tensor: got {tensor.dtype}; espalier reduces {', '.join(map(str, _DTYPES))}")
    return _DTYPES[tensor.dtype]


def _moved(tensor):
    """Count and type of elements that are not reduced. Types that the library does not know are sent as bytes."""
    return (tensor.numel(), _DTYPES[tensor.dtype]) if tensor.dtype in _DTYPES else (_bytes(tensor), _BYTES)


def _one(tensors):
    if len(tensors) != 1:
        raise ValueError(f"tensors: got {len(tensors)}; espalier supports one tensor per call")
    return _checked(tensors[0])


def _of_one_type(tensors, dtype):
    for index, tensor in enumerate(tensors):
        if _checked(tensor).dtype != dtype:
            raise ValueError(f"invalid tensor type at index {index} (expected {dtype}, got {tensor.dtype})")


def _one_each(tensors, size, what):
    if len(tensors) != size:
        raise ValueError(f"Incorrect {what} list size {len(tensors)}. It should be {size}, same as size of the process group.")


def _list(tensors, like, size, what):
    """Checks a list with one tensor from, or for, every rank. The error messages are those of gloo."""
    _one_each(tensors, size, what)
    _of_one_type(tensors, like.dtype)
    for index, tensor in enumerate(tensors):
        if tensor.shape != like.shape:
            raise ValueError(f"invalid tensor size at index {index} (expected {tuple(like.shape)}, got {tuple(tensor.shape)})")
    return tensors


def _flat(tensors):
    """A copy of all elements, one after another."""
    _of_one_type(tensors, tensors[0].dtype)
    return torch.cat([_checked(tensor).reshape(-1) for tensor in tensors])


def _like(tensors):
    """A buffer for all elements of the tensors, one after another."""
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


def _check_lost(group):
    """Raises an error if a rank of this weakly referenced group is lost."""
    group = group and group()
    if group is not None:
        group._check_lost()


class ProcessGroup(TorchProcessGroup):
    """`ranks`: the world rank of each rank of the group."""

    def __init__(self, store, rank, ranks, timeout, options):
        global _first
        super().__init__(rank, len(ranks))
        self._store, self._options, self._timeout_s, self._ranks = store, options, timeout.total_seconds(), ranks
        check_lost = functools.partial(_check_lost, _first)
        self._parts = _Parts(join_communicator(store, "world", rank, ranks, self._timeout_s, options, check_lost))
        self._lock = threading.Lock()  # guards _parts, and serialises calls
        self._sequence, self._last = 0, None
        _groups.add(self)
        if _first is None or _first() is None or not _first()._parts:
            _first = weakref.ref(self)

    def __del__(self):
        self._end()

    def _end(self, abandon=False):
        # Finalizing rank 0 waits until the other ranks have left, so a separate thread does it.
        parts, self._parts = getattr(self, "_parts", None), None
        if parts and parts.process == os.getpid():  # a forked child has the group, but none of its threads
            _ending[:] = [thread for thread in _ending if thread.is_alive()]
            _ending.append(threading.Thread(target=parts.end, args=(abandon,), name="espalier-end", daemon=True))
            _ending[-1].start()

    # -- works ----------------------------------------------------------------------------------------------------

    def _keep(self, work):
        kept = self._parts.kept
        kept[id(work)] = work
        if len(kept) > _MOST_KEPT:  # callers need not call wait() on every Work, so old completed ones are dropped
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

    def _check_lost(self):
        """Raises an error if a rank is lost: a signal to this rank itself then fails. While calls are pending, no signal is sent:
        these calls report the loss."""
        with self._lock:
            last = self._last and self._last()
            if self._parts and (last is None or last.is_completed()):
                check(_lib.esp_signal(self._parts.comm, self.rank()), self._ranks)
                check(_lib.esp_wait(self._parts.comm, self.rank(), None), self._ranks)

    def _start(self, function, keep, result, *arguments, finish=None):
        handle = ctypes.c_void_p()
        with self._lock:
            check(function(self._parts.comm, *arguments, ctypes.byref(handle)), self._ranks)
            self._sequence += 1
            work = self._keep(Work(self, handle, keep, result, finish))
            self._last = weakref.ref(work)
            return work

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
        return self._in_place(_lib.esp_broadcast, tensor, *_moved(tensor), opts.rootRank)

    def reduce(self, tensors, opts):
        tensor = _one(tensors)
        return self._in_place(_lib.esp_reduce, tensor, tensor.numel(), _dtype(tensor), _op(opts), opts.rootRank)

    def _allgather_base(self, output, tensor, opts=None):
        used, flat = _checked(tensor).contiguous(), _checked(output).contiguous()
        _of_one_type([output], tensor.dtype)
        if output.numel() != self.size() * tensor.numel():
            raise ValueError(f"output: got {output.numel()} elements; expected {tensor.numel()} from each of {self.size()} ranks")
        finish = None if flat is output else lambda: output.copy_(flat)
        return self._start(_lib.esp_all_gather, (used, flat, output), [output], used.data_ptr(), flat.data_ptr(),
                           *_moved(used), finish=finish)

    def allgather(self, outputs, tensors, opts=None):
        tensor, (parts,) = _one(tensors).contiguous(), outputs
        flat = _like(_list(parts, tensor, self.size(), "output"))
        return self._start(_lib.esp_all_gather, (tensor, flat, parts), parts, tensor.data_ptr(), flat.data_ptr(),
                           *_moved(tensor), finish=lambda: _spread(flat, parts))

    def allgather_coalesced(self, outputs, tensors, opts=None):
        flat = _flat(tensors)
        _one_each(outputs, self.size(), "output")
        for parts in outputs:
            if [part.shape for part in parts] != [tensor.shape for tensor in tensors]:
                raise ValueError(f"invalid tensor sizes (expected {[tuple(tensor.shape) for tensor in tensors]}, "
                                 f"got {[tuple(part.shape) for part in parts]})")
            _of_one_type(parts, flat.dtype)
        all_of_them = torch.empty(self.size() * flat.numel(), dtype=flat.dtype)

        def finish():
            for rank, part in enumerate(all_of_them.split(flat.numel())):
                _spread(part, outputs[rank])
        return self._start(_lib.esp_all_gather, (flat, all_of_them), outputs, flat.data_ptr(), all_of_them.data_ptr(),
                           *_moved(flat), finish=finish)

    def _reduce_scatter_base(self, output, tensor, opts):
        used, part = _checked(tensor).contiguous(), _checked(output).contiguous()
        _of_one_type([output], tensor.dtype)
        if tensor.numel() != self.size() * output.numel():
            raise ValueError(f"input: got {tensor.numel()} elements; expected {output.numel()} for each of {self.size()} ranks")
        finish = None if part is output else lambda: output.copy_(part)
        return self._start(_lib.esp_reduce_scatter, (used, part, output), [output], used.data_ptr(), part.data_ptr(),
                           part.numel(), _dtype(part), _op(opts), finish=finish)

    def reduce_scatter(self, outputs, inputs, opts):
        return self._reduce_scatter_base(_one(outputs), _flat(_list(inputs[0], outputs[0], self.size(), "input")), opts)

    def gather(self, outputs, tensors, opts):
        tensor, root = _one(tensors).contiguous(), opts.rootRank
        parts = _list(outputs[0], tensor, self.size(), "output") if root == self.rank() else []
        flat = _like(parts) if parts else None
        return self._start(_lib.esp_gather, (tensor, flat, parts), parts, tensor.data_ptr(),
                           flat.data_ptr() if parts else None, *_moved(tensor), root,
                           finish=lambda: parts and _spread(flat, parts))

    def scatter(self, outputs, inputs, opts):
        output, root = _one(outputs), opts.rootRank
        flat = _flat(_list(inputs[0], output, self.size(), "input")) if root == self.rank() else None
        part = output.contiguous()
        finish = None if part is output else lambda: output.copy_(part)
        return self._start(_lib.esp_scatter, (flat, part, output), [output], None if flat is None else flat.data_ptr(),
                           part.data_ptr(), *_moved(part), root, finish=finish)

    def alltoall(self, outputs, inputs, opts=None):
        for what, tensors in (("input", inputs), ("output", outputs)):
            _one_each(tensors, self.size(), what)
            _of_one_type(tensors, inputs[0].dtype)
        flat_in, flat_out = _flat(inputs), _like(outputs)
        return self._exchange(flat_in, [t.numel() for t in inputs], flat_out, [t.numel() for t in outputs], outputs,
                              lambda: _spread(flat_out, outputs))

    def alltoall_base(self, output, tensor, output_splits, input_splits, opts=None):
        used, out = _checked(tensor).contiguous(), _checked(output).contiguous()
        _of_one_type([output], tensor.dtype)

        def counts(whole, splits):
            num_rows = whole.shape[0] if whole.dim() else 1
            if not splits and num_rows % self.size() != 0:
                raise ValueError(f"Tensor's dim 0 ({num_rows}) does not divide equally across group size ({self.size()})")
            splits = splits or [num_rows // self.size()] * self.size()
            if len(splits) != self.size() or min(splits) < 0 or sum(splits) != num_rows:
                raise ValueError(f"Split sizes {list(splits)} do not match dim 0 size {num_rows} and group size {self.size()}")
            return [rows * (whole.numel() // max(num_rows, 1)) for rows in splits]
        finish = None if out is output else lambda: output.copy_(out)
        return self._exchange(used, counts(used, input_splits), out, counts(out, output_splits), [output], finish)

    def _exchange(self, tensor, send, out, receive, result, finish):
        """`send` and `receive`: numbers of elements per rank."""
        dtype = _DTYPES.get(tensor.dtype, _BYTES)
        unit = 1 if tensor.dtype in _DTYPES else tensor.element_size()
        send, receive = [unit * count for count in send], [unit * count for count in receive]
        arrays = (_sizes(send), _offsets(send), _sizes(receive), _offsets(receive))
        return self._start(_lib.esp_all_to_all_v, (tensor, out, arrays), result, tensor.data_ptr(), arrays[0], arrays[1],
                           out.data_ptr(), arrays[2], arrays[3], dtype, finish=finish)

    def barrier(self, opts=None):
        return self._start(_lib.esp_barrier, (), [])

    # -- messages ---------------------------------------------------------------------------------------------------

    def _message(self, function, tensor, peer, tag, sending):
        if tag:
            raise ValueError(f"tag: got {tag}; espalier matches messages by order and supports no tags")
        if peer == self.rank():
            raise ValueError(f"peer: got {self._ranks[peer]}, this rank; a rank exchanges messages with other ranks, not with itself")
        if not 0 <= peer < self.size():
            raise ValueError(f"peer: got {peer}; expected 0 to {self.size() - 1}, the ranks of the group")
        used = tensor if tensor.is_contiguous() else tensor.contiguous()
        finish = (lambda: tensor.copy_(used)) if used is not tensor and not sending else None
        ends = (self.rank(), peer) if sending else (peer, self.rank())

        def call(comm):
            return function(comm, used.data_ptr(), *_moved(used), 1 if sending else 0, None)
        with self._lock:
            links = self._parts.links
            if ends not in links:
                links[ends] = PeerChannel(self._store, *ends, sending, [self._ranks[end] for end in ends], self._timeout_s,
                                   self._options, functools.partial(_check_lost, weakref.ref(self)))
            work = self._keep(MessageWork(self, tensor, call, finish, peer))
            links[ends].add(work)
            return work

    def send(self, tensors, peer, tag=0):
        return self._message(_lib.esp_send, _one(tensors), peer, tag, True)

    def recv(self, tensors, peer, tag=0):
        return self._message(_lib.esp_recv, _one(tensors), peer, tag, False)

    def recv_anysource(self, tensors, tag=0):
        raise ValueError("recv: got no source; espalier needs a named source: recv(tensor, src=…)")

    # -- other methods that torch calls ----------------------------------------------------------------------------------

    def _start_coalescing(self):
        """Messages of a batch never block each other here: nothing to do."""

    def _end_coalescing(self, works):
        pass

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return self._sequence
