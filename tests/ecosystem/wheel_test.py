"""Builds a wheel of the Python bindings and uses it outside the source tree."""
import glob
import os
import subprocess
import tempfile
import unittest

import packages
from ranks import PYTHON, SOURCE, environment, need_torch

PROGRAM = """
import numpy, espalier
assert espalier._lib._name.startswith(espalier.__path__[0]), espalier._lib._name
with espalier.init() as comm:
    array = numpy.ones(3, dtype="float32")
    comm.all_reduce(array)
    print(comm.size, array.tolist())
import importlib.metadata as metadata
point, = [p for p in metadata.entry_points(group="torch.backends") if p.name == "espalier"]
point.load()()
import torch.distributed
print(hasattr(torch.distributed.Backend, "ESPALIER"))
"""


class Wheel(unittest.TestCase):
    def test_contains_library_and_registers_backend(self):
        need_torch()
        build = os.path.dirname(os.path.dirname(os.environ["ESPALIER_LIBRARY"]))
        clean = {k: v for k, v in environment().items() if k not in ("ESPALIER_LIBRARY", "PYTHONPATH")}
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([SOURCE / "python/make_wheel", build, folder], check=True, capture_output=True, timeout=60)
            wheel, = glob.glob(folder + "/*.whl")
            subprocess.run([packages.python(), "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target",
                            folder + "/site", "--disable-pip-version-check", wheel], check=True, timeout=60, env=clean)
            answer = subprocess.run([PYTHON, "-c", PROGRAM], capture_output=True, text=True, timeout=60, cwd=folder,
                                    env={**clean, "PYTHONPATH": folder + "/site"})
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(answer.stdout, "1 [1.0, 1.0, 1.0]\nTrue\n")


if __name__ == "__main__":
    unittest.main()
