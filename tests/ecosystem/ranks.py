"""Starts ranks of a Python program with Debian's torch and collects their output."""
import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PYTHON = "/usr/bin/python3"  # Debian's torch belongs to Debian's Python
LIMIT_S = 120
LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def need_torch():
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
        raise unittest.SkipTest("torch is not installed (apt-get install python3-torch)")


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if k not in LAUNCHERS}
    return {**clean, "PYTHONPATH": str(SOURCE / "python"), "OMP_NUM_THREADS": "1", **more}


def run_ranks(test, size, *command, **more):
    """Runs the ranks and returns their outputs. A rank that fails or does not end fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = {"RENDEZVOUS_FILE": os.path.join(folder, "rendezvous"), "WORLD_SIZE": str(size)}
        ranks = [subprocess.Popen([PYTHON, *map(str, command)], text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, env=environment(**rendezvous, RANK=str(rank), **more))
                 for rank in range(size)]
        try:
            outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.communicate()
    test.assertEqual([rank.returncode for rank in ranks], [0] * size, "\n".join(outputs))
    return outputs
