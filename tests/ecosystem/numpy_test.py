"""The NumPy binding, with real processes: arrays that do not fit are refused, and how it finds its library."""
import pathlib
import socket
import subprocess
import unittest

from driving import free_port
from ranks import LIMIT_S, PYTHON, environment, run_ranks

HERE = pathlib.Path(__file__).resolve().parent


def setUpModule():
    if subprocess.run([PYTHON, "-c", "import numpy"], capture_output=True).returncode != 0:
        raise unittest.SkipTest("NumPy is not installed (apt-get install python3-numpy)")


class Arrays(unittest.TestCase):
    def test_what_does_not_fit_is_refused(self):
        for rank, output in enumerate(run_ranks(self, 2, HERE / "numpy_ranks.py", PORT=str(free_port()))):
            self.assertIn(f"rank {rank} good", output)


class Meeting(unittest.TestCase):
    def test_another_program_may_have_the_port(self):
        with socket.socket() as owner:
            owner.bind(("0.0.0.0", 0))
            owner.listen()
            for rank, output in enumerate(run_ranks(self, 2, HERE / "numpy_ranks.py", PORT=str(owner.getsockname()[1]))):
                self.assertIn(f"rank {rank} good", output)

    def test_one_option_says_how_long_a_start_may_take(self):
        for options, more in (("start_timeout_s=1", {}), ("", {"ESPALIER_START_TIMEOUT_S": "1"})):
            program = f"import espalier; espalier.init_rank(1, 2, '127.0.0.1', {free_port()}, options='{options}')"
            answer = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, env=environment(**more),
                                    timeout=20)  # a wait of its own would take 30 s and more
            self.assertRegex(answer.stderr, r"no connection to rank 0 at tcp://127.0.0.1:\d+ within 1[.0-9]* s \(start_timeout_s\)")


class Library(unittest.TestCase):
    def imported(self, library):
        return subprocess.run([PYTHON, "-c", "import espalier"], capture_output=True, text=True, timeout=LIMIT_S,
                              env=environment(ESPALIER_LIBRARY=library)).stderr

    def test_a_path_that_is_named_and_wrong_is_told(self):
        self.assertRegex(self.imported("/nowhere/lib.so"), "ImportError: ESPALIER_LIBRARY=/nowhere/lib.so cannot be loaded")

    def test_another_library_is_told(self):
        self.assertRegex(self.imported("libc.so.6"), "ImportError: libc.so.6 is not libespalier_collectives")


if __name__ == "__main__":
    unittest.main()
