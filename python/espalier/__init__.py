"""Espalier's collectives on NumPy arrays, over the C library; nothing to compile.

    import numpy, espalier
    comm = espalier.init()                    # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT say who and where
    comm.all_reduce(array)                    # in place; comm.all_reduce(array, out) otherwise
    work = comm.all_reduce(array, op="avg", wait=False); work.wait()

`import espalier.torch` makes them a backend of torch.distributed.

The library is found through ESPALIER_LIBRARY (a path), in this package or the prefix it is installed in, or by the
system's loader.
"""
import ctypes
import os
import pathlib

import numpy

_DTYPES = {"float64": 0, "float32": 1, "float16": 3, "int64": 4, "int32": 5, "int16": 6, "int8": 7, "uint8": 8}
_OPS = {"sum": 0, "prod": 1, "min": 2, "max": 3, "avg": 4}
_RESULTS = {1: "internal error", 2: "usage", 3: "communication", 4: "files", 5: "not done"}


class Error(RuntimeError):
    """A call failed. `rank` is the rank blamed, or -1."""

    def __init__(self, kind, message, rank):
        super().__init__(f"{_RESULTS.get(kind, kind)}: {message}")
        self.kind, self.rank = kind, rank


def _load():
    name = "libespalier_collectives.so.1"
    here = pathlib.Path(__file__).resolve()
    tries = [os.environ.get("ESPALIER_LIBRARY")]
    # A wheel has it in lib/ of the package; PREFIX/share/espalier/python/espalier/ has it in PREFIX/lib.
    places = list(here.parents)[:5:4] if here.parts[-5:-2] == ("share", "espalier", "python") else [here.parent]
    tries += [str(found) for place in places for found in place.glob(f"lib*/**/{name}")][:1]
    for path in [path for path in tries if path] + [name]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reason = error
    raise ImportError(f"{name} was not found; set ESPALIER_LIBRARY to its path ({reason})")


_lib = _load()
_lib.esp_last_error.restype = ctypes.c_char_p
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
    "esp_work_wait": [_void, ctypes.c_double],
    "esp_work_test": [_void, _void],
    "esp_work_free": [_void],
}.items():
    getattr(_lib, _name).argtypes = _types


def _check(result):
    if result != 0:
        raise Error(result, _lib.esp_last_error().decode(errors="replace"), _lib.esp_last_error_rank())


def _dtype(array):
    if array.dtype.name not in _DTYPES:
        raise TypeError(f"arrays of {array.dtype} cannot be reduced; known: {', '.join(_DTYPES)}")
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous; numpy.ascontiguousarray makes it so")
    return _DTYPES[array.dtype.name]


def _same(a, b):
    if a.dtype != b.dtype:
        raise TypeError(f"input is {a.dtype}, output is {b.dtype}")


class Work:
    """A call under way. Keeps its arrays alive until it is done."""

    def __init__(self, handle, arrays):
        self._handle, self._arrays = handle, arrays

    def done(self):
        done = ctypes.c_int()
        _check(_lib.esp_work_test(self._handle, ctypes.byref(done)))
        return bool(done.value)

    def wait(self, timeout=None):
        _check(_lib.esp_work_wait(self._handle, -1.0 if timeout is None else float(timeout)))

    def __del__(self):
        if self._handle:
            _lib.esp_work_wait(self._handle, -1.0)  # the arrays must not go while they are written
            _lib.esp_work_free(self._handle)


class Communicator:
    def __init__(self, handle):
        self._handle = handle
        self.rank, self.size = _lib.esp_rank(handle), _lib.esp_size(handle)

    def _call(self, function, arrays, *arguments, wait=True):
        if wait:
            _check(function(self._handle, *arguments, None))
            return None
        handle = _void()
        _check(function(self._handle, *arguments, ctypes.byref(handle)))
        return Work(handle, arrays)

    def all_reduce(self, array, out=None, op="sum", wait=True):
        out = array if out is None else out
        _same(array, out)
        return self._call(_lib.esp_all_reduce, (array, out), array.ctypes.data, out.ctypes.data, array.size,
                          _dtype(array), _OPS[op], wait=wait)

    def broadcast(self, array, root=0, wait=True):
        return self._call(_lib.esp_broadcast, (array,), array.ctypes.data, array.size, _dtype(array), root, wait=wait)

    def reduce(self, array, out=None, op="sum", root=0, wait=True):
        return self._call(_lib.esp_reduce, (array, out), array.ctypes.data, None if out is None else out.ctypes.data,
                          array.size, _dtype(array), _OPS[op], root, wait=wait)

    def all_gather(self, array, out, wait=True):
        _same(array, out)
        return self._call(_lib.esp_all_gather, (array, out), array.ctypes.data, out.ctypes.data, array.size,
                          _dtype(array), wait=wait)

    def reduce_scatter(self, array, out, op="sum", wait=True):
        _same(array, out)
        return self._call(_lib.esp_reduce_scatter, (array, out), array.ctypes.data, out.ctypes.data, out.size,
                          _dtype(array), _OPS[op], wait=wait)

    def all_to_all(self, array, out, wait=True):
        _same(array, out)
        return self._call(_lib.esp_all_to_all, (array, out), array.ctypes.data, out.ctypes.data,
                          array.size // self.size, _dtype(array), wait=wait)

    def gather(self, array, out=None, root=0, wait=True):
        return self._call(_lib.esp_gather, (array, out), array.ctypes.data, None if out is None else out.ctypes.data,
                          array.size, _dtype(array), root, wait=wait)

    def scatter(self, array, out, root=0, wait=True):
        """`array` is read on the root only and may be None elsewhere."""
        return self._call(_lib.esp_scatter, (array, out), None if array is None else array.ctypes.data, out.ctypes.data,
                          out.size, _dtype(out), root, wait=wait)

    def send(self, array, peer, wait=True):
        return self._call(_lib.esp_send, (array,), array.ctypes.data, array.size, _dtype(array), peer, wait=wait)

    def recv(self, array, peer, wait=True):
        return self._call(_lib.esp_recv, (array,), array.ctypes.data, array.size, _dtype(array), peer, wait=wait)

    def barrier(self):
        self._call(_lib.esp_barrier, ())

    def split(self, colour, key=0):
        handle = _void()
        _check(_lib.esp_split(self._handle, colour, key, ctypes.byref(handle)))
        return Communicator(handle) if handle else None

    def allocate(self, shape, dtype="float32"):
        """An array in memory that all ranks of one host share; it lives as long as the communicator."""
        dtype = numpy.dtype(dtype)
        count = int(numpy.prod(shape))
        memory = _void()
        _check(_lib.esp_allocate(self._handle, count * dtype.itemsize, ctypes.byref(memory)))
        buffer = (ctypes.c_byte * (count * dtype.itemsize)).from_address(memory.value)
        return numpy.frombuffer(buffer, dtype=dtype).reshape(shape)

    def abort(self, why):
        _check(_lib.esp_abort(self._handle, why.encode()))

    def finalize(self):
        handle, self._handle = self._handle, None
        if handle:
            _check(_lib.esp_finalize(handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.finalize()


def init(options=None):
    """Joins the job that the environment describes."""
    handle = _void()
    _check(_lib.esp_init(None if options is None else options.encode(), ctypes.byref(handle)))
    return Communicator(handle)


def init_rank(rank, size, address, port, secret_file=None, options=None):
    handle = _void()
    _check(_lib.esp_init_rank(rank, size, address.encode(), port, secret_file and secret_file.encode(),
                              options and options.encode(), ctypes.byref(handle)))
    return Communicator(handle)
