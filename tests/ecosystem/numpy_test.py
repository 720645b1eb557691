"""The NumPy binding with real processes: rejected arrays, rendezvous, library lookup."""
import pathlib
import socket
import subprocess
import unittest

from cli_runner import free_port
from ranks import LIMIT_S, PYTHON, environment, run_ranks

HERE = pathlib.Path(__file__).resolve().parent


def setUpModule():
    if subprocess.run([PYTHON, "-c", "import numpy"], capture_output=True).returncode != 0:
        raise unittest.SkipTest("NumPy is not installed (apt-get install python3-numpy)")


class Arrays(unittest.TestCase):
    def test_rejects_incompatible_arrays(self):
        for rank, output in enumerate(run_ranks(self, 2, HERE / "numpy_ranks.py", PORT=str(free_port()))):
            self.assertIn(f"rank {rank} good", output)


class Rendezvous(unittest.TestCase):
    def test_port_may_be_in_use_by_another_program(self):
        with socket.socket() as owner:
            owner.bind(("0.0.0.0", 0))
            owner.listen()
            for rank, output in enumerate(run_ranks(self, 2, HERE / "numpy_ranks.py", PORT=str(owner.getsockname()[1]))):
                self.assertIn(f"rank {rank} good", output)

    def test_timeout_option_limits_rendezvous(self):
        for options, more in (("start_timeout_s=1", {}), ("", {"ESPALIER_START_TIMEOUT_S": "1"})):
            program = f"import espalier; espalier.init_rank(1, 2, '127.0.0.1', {free_port()}, options='{options}')"
            answer = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, env=environment(**more),
                                    timeout=20)  # without the option the wait would take at least 30 s
            self.assertRegex(answer.stderr, r"no connection to rank 0 at tcp://127.0.0.1:\d+ within 1[.0-9]* s \(start_timeout_s\)")


class Library(unittest.TestCase):
    def imported(self, library):
        return subprocess.run([PYTHON, "-c", "import espalier"], capture_output=True, text=True, timeout=LIMIT_S,
                              env=environment(ESPALIER_LIBRARY=library)).stderr

    def test_reports_wrong_library_path(self):
        self.assertRegex(self.imported("/nowhere/lib.so"), "ImportError: ESPALIER_LIBRARY: got /nowhere/lib.so, which cannot be loaded")

    def test_rejects_other_library(self):
        self.assertRegex(self.imported("libc.so.6"), "ImportError: libc.so.6: not the Espalier library")


if __name__ == "__main__":
    unittest.main()
