"""Espalier's collectives on NumPy arrays, over the C library; nothing to compile.

    import numpy, espalier
    comm = espalier.init()                    # reads RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    comm.all_reduce(array)                    # in place; comm.all_reduce(array, out) otherwise
    work = comm.all_reduce(array, op="avg", wait=False); work.wait()

`import espalier.torch` registers them as a backend of torch.distributed.

The library is found through ESPALIER_LIBRARY (a path), in this package or the prefix it is installed in, or by the
system's loader.
"""
import ctypes
import operator
import os
import pathlib
import weakref

import numpy

_DTYPES = {"float64": 0, "float32": 1, "float16": 3, "int64": 4, "int32": 5, "int16": 6, "int8": 7, "uint8": 8}
_OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4}
_RESULTS = {1: "internal error", 2: "usage", 3: "communication", 4: "files", 5: "not done"}


class Error(RuntimeError):
    """A call failed. `rank` is the rank that caused it, or -1."""

    def __init__(self, kind, message, rank):
        super().__init__(f"{_RESULTS.get(kind, kind)}: {message}")
        self.kind, self.rank = kind, rank


def _load():
    name = "libespalier_collectives.so.1"
    given = os.environ.get("ESPALIER_LIBRARY")
    if given:
        try:
            return ctypes.CDLL(given)
        except OSError as error:
            raise ImportError(f"ESPALIER_LIBRARY: got {given}, which cannot be loaded ({error}); expected the path of {name}") from None
    here = pathlib.Path(__file__).resolve()
    # A wheel has it in lib/ of the package; PREFIX/share/espalier/python/espalier/ has it in PREFIX/lib.
    places = list(here.parents)[:5:4] if here.parts[-5:-2] == ("share", "espalier", "python") else [here.parent]
    for path in [str(found) for place in places for found in place.glob(f"lib*/**/{name}")][:1] + [name]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reason = error
    raise ImportError(f"{name}: not found ({reason}). Set ESPALIER_LIBRARY to its path")


_lib = _load()
if not hasattr(_lib, "esp_version"):
    raise ImportError(f"{_lib._name}: not the Espalier library; expected libespalier_collectives.so.1")
_lib.esp_last_error.restype = _lib.esp_version.restype = ctypes.c_char_p
__version__ = _lib.esp_version().decode()
_size, _void, _int = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
for _name, _types in {
    "esp_init": [ctypes.c_char_p, _void],
    "esp_init_rank": [_int, _int, ctypes.c_char_p, _int, ctypes.c_char_p, ctypes.c_char_p, _void],
    "esp_split": [_void, _int, _int, _void],
    "esp_finalize": [_void],
    "esp_abort": [_void, ctypes.c_char_p],
    "esp_rank": [_void],
    "esp_size": [_void],
    "esp_allocate": [_void, _size, _void],
    "esp_broadcast": [_void, _void, _size, _int, _int, _void],
    "esp_reduce": [_void, _void, _void, _size, _int, _int, _int, _void],
    "esp_all_reduce": [_void, _void, _void, _size, _int, _int, _void],
    "esp_reduce_scatter": [_void, _void, _void, _size, _int, _int, _void],
    "esp_all_gather": [_void, _void, _void, _size, _int, _void],
    "esp_all_to_all": [_void, _void, _void, _size, _int, _void],
    "esp_all_to_all_v": [_void, _void, _void, _void, _void, _void, _void, _int, _void],
    "esp_gather": [_void, _void, _void, _size, _int, _int, _void],
    "esp_scatter": [_void, _void, _void, _size, _int, _int, _void],
    "esp_send": [_void, _void, _size, _int, _int, _void],
    "esp_recv": [_void, _void, _size, _int, _int, _void],
    "esp_barrier": [_void, _void],
    "esp_signal": [_void, _int],
    "esp_wait": [_void, _int, _void],
    "esp_work_wait": [_void, ctypes.c_double],
    "esp_work_test": [_void, _void],
    "esp_work_free": [_void],
}.items():
    getattr(_lib, _name).argtypes = _types


def _check(result):
    if result != 0:
        raise Error(result, _lib.esp_last_error().decode(errors="replace"), _lib.esp_last_error_rank())


def _integer(value, what, low=-2**31, high=2**31 - 1):
    """Range check: ctypes would truncate values that do not fit."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what}: got {value!r}; expected a whole number") from None
    if not low <= number <= high:
        raise ValueError(f"{what}: got {number}; expected {low} to {high}")
    return number


def _text(value, what):
    if value is None:
        return None
    if "\0" in value:
        raise ValueError(f"{what}: got {value!r}, which contains NUL; expected text without it")
    return os.fsencode(value)


def _op(name):
    if name not in _OPS:
        raise ValueError(f"op: got {name!r}; expected one of {', '.join(_OPS)}")
    return _OPS[name]


def _array(array, what, size=None, like=None, written=False):
    """Rejects arrays that the C library cannot use as a pointer and a count; returns the pointer."""
    if not isinstance(array, numpy.ndarray):
        raise TypeError(f"{what}: got {type(array).__name__}; expected a NumPy array")
    if array.dtype.name not in _DTYPES:
        raise TypeError(f"{what}: got dtype {array.dtype}; expected one of {', '.join(_DTYPES)}")
    if not array.dtype.isnative:
        raise TypeError(f"{what}: got dtype {array.dtype.str}; expected the byte order of this machine. "
                        f"Use astype(\"{array.dtype.name}\")")
    if not array.flags.c_contiguous:
        raise ValueError(f"{what}: got a non-contiguous array; expected a contiguous one. Use numpy.ascontiguousarray")
    if written and not array.flags.writeable:
        raise ValueError(f"{what}: got a read-only array; expected a writable one. Use copy()")
    if like is not None and array.dtype != like.dtype:
        raise TypeError(f"{what}: got dtype {array.dtype}; expected {like.dtype}, the dtype of the other array")
    if size is not None and array.size != size:
        raise ValueError(f"{what}: got {array.size} elements; expected {size}")
    return array.ctypes.data


def _dtype(array):
    return _DTYPES[array.dtype.name]


class Work:
    """A pending call. Keeps its arrays alive until it completes."""

    def __init__(self, handle, arrays):
        self._handle, self._arrays, self._process = handle, arrays, os.getpid()

    def done(self):
        done = ctypes.c_int()
        _check(_lib.esp_work_test(self._handle, ctypes.byref(done)))
        return bool(done.value)

    def wait(self, timeout=None):
        _check(_lib.esp_work_wait(self._handle, -1.0 if timeout is None else float(timeout)))

    def __del__(self):
        if self._handle and os.getpid() == self._process:  # a forked child has no threads of the library
            _lib.esp_work_wait(self._handle, -1.0)  # the arrays must not be freed while the library writes them
            _lib.esp_work_free(self._handle)


class _End:
    """Ends a communicator when the last array in its shared memory is freed; every such array references this object."""

    def __init__(self, handle):
        weakref.finalize(self, self._end, handle, os.getpid())

    @staticmethod
    def _end(handle, process):
        if os.getpid() == process:
            _lib.esp_finalize(handle)


class Communicator:
    def __init__(self, handle):
        self._handle, self._memory = handle, []
        self.rank, self.size = _lib.esp_rank(handle), _lib.esp_size(handle)

    def _call(self, function, arrays, *arguments, wait=True):
        if wait:
            _check(function(self._handle, *arguments, None))
            return None
        handle = _void()
        _check(function(self._handle, *arguments, ctypes.byref(handle)))
        return Work(handle, arrays)

    def _root(self, root, what="root"):
        return _integer(root, what, 0, self.size - 1)

    def all_reduce(self, array, out=None, op="sum", wait=True):
        out = array if out is None else out
        pointers = _array(array, "array"), _array(out, "out", array.size, array, written=True)
        return self._call(_lib.esp_all_reduce, (array, out), *pointers, array.size, _dtype(array), _op(op), wait=wait)

    def broadcast(self, array, root=0, wait=True):
        root = self._root(root)
        pointer = _array(array, "array", written=self.rank != root)
        return self._call(_lib.esp_broadcast, (array,), pointer, array.size, _dtype(array), root, wait=wait)

    def reduce(self, array, out=None, op="sum", root=0, wait=True):
        """`out` is written on the root only and may be None elsewhere."""
        root = self._root(root)
        pointer = _array(array, "array")
        to = _array(out, "out", array.size, array, written=True) if self.rank == root else None
        return self._call(_lib.esp_reduce, (array, out), pointer, to, array.size, _dtype(array), _op(op), root, wait=wait)

    def all_gather(self, array, out, wait=True):
        pointers = _array(array, "array"), _array(out, "out", self.size * array.size, array, written=True)
        return self._call(_lib.esp_all_gather, (array, out), *pointers, array.size, _dtype(array), wait=wait)

    def reduce_scatter(self, array, out, op="sum", wait=True):
        pointer = _array(out, "out", written=True)
        pointers = _array(array, "array", self.size * out.size, out), pointer
        return self._call(_lib.esp_reduce_scatter, (array, out), *pointers, out.size, _dtype(out), _op(op), wait=wait)

    def all_to_all(self, array, out, wait=True):
        pointers = _array(array, "array"), _array(out, "out", array.size, array, written=True)
        if array.size % self.size:
            raise ValueError(f"array: got {array.size} elements; expected a multiple of the {self.size} ranks")
        return self._call(_lib.esp_all_to_all, (array, out), *pointers, array.size // self.size, _dtype(array), wait=wait)

    def gather(self, array, out=None, root=0, wait=True):
        """`out` is written on the root only and may be None elsewhere."""
        root, pointer = self._root(root), _array(array, "array")
        to = _array(out, "out", self.size * array.size, array, written=True) if self.rank == root else None
        return self._call(_lib.esp_gather, (array, out), pointer, to, array.size, _dtype(array), root, wait=wait)

    def scatter(self, array, out, root=0, wait=True):
        """`array` is read on the root only and may be None elsewhere."""
        root, to = self._root(root), _array(out, "out", written=True)
        pointer = _array(array, "array", self.size * out.size, out) if self.rank == root else None
        return self._call(_lib.esp_scatter, (array, out), pointer, to, out.size, _dtype(out), root, wait=wait)

    def send(self, array, peer, wait=True):
        return self._call(_lib.esp_send, (array,), _array(array, "array"), array.size, _dtype(array),
                          self._root(peer, "peer"), wait=wait)

    def recv(self, array, peer, wait=True):
        return self._call(_lib.esp_recv, (array,), _array(array, "array", written=True), array.size, _dtype(array),
                          self._root(peer, "peer"), wait=wait)

    def barrier(self):
        self._call(_lib.esp_barrier, ())

    def split(self, colour, key=0):
        handle = _void()
        _check(_lib.esp_split(self._handle, _integer(colour, "colour"), _integer(key, "key"), ctypes.byref(handle)))
        return Communicator(handle) if handle else None

    def allocate(self, shape, dtype="float32"):
        """An array in memory that all ranks of one host share. If such arrays exist when finalize is called, the communicator
        ends when the last of them is freed."""
        dtype = numpy.dtype(dtype)
        count = int(numpy.prod(shape))
        memory = _void()
        _check(_lib.esp_allocate(self._handle, count * dtype.itemsize, ctypes.byref(memory)))
        buffer = (ctypes.c_byte * (count * dtype.itemsize)).from_address(memory.value)
        self._memory.append(weakref.ref(buffer))  # every array and view in it references the buffer
        return numpy.frombuffer(buffer, dtype=dtype).reshape(shape)

    def abort(self, why):
        _check(_lib.esp_abort(self._handle, _text(why, "why")))

    def finalize(self):
        handle, self._handle = self._handle, None
        living = [buffer for buffer in (ref() for ref in self._memory) if buffer is not None]
        if living:
            end = _End(handle)
            for buffer in living:
                buffer.end = end
            self._memory = []
        elif handle:
            _check(_lib.esp_finalize(handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finalize()


def init(options=None):
    """Joins the job described by environment variables."""
    handle = _void()
    _check(_lib.esp_init(_text(options, "options"), ctypes.byref(handle)))
    return Communicator(handle)


def init_rank(rank, size, address, port, secret_file=None, options=None):
    handle = _void()
    _check(_lib.esp_init_rank(_integer(rank, "rank"), _integer(size, "size"), _text(address, "address"),
                              _integer(port, "port"), _text(secret_file, "secret_file"), _text(options, "options"),
                              ctypes.byref(handle)))
    return Communicator(handle)
