"""End-to-end tests under a real mpirun: ranks that rendezvous through MPI reach the losses of espalier launch, and
`bench comm` measures the ranks of mpirun. Also tests errors without mpirun."""
import json
import os
import pathlib
import shutil
import subprocess
import unittest

from cli_runner import ESPALIER, LIMIT_S, run
from train_test import TempFolderTestCase

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def plug_in(flavour):
    return os.path.join(os.path.dirname(ESPALIER), "..", "lib", f"libespalier_mpi_{flavour}.so")


class MpirunTestCase(TempFolderTestCase):
    flavour, flags = "", []

    def setUp(self):
        if not self.flavour:
            self.skipTest("base class")
        self.mpirun = shutil.which("mpirun." + self.flavour)
        if not self.mpirun or not os.path.exists(plug_in(self.flavour)):
            self.skipTest(f"{self.flavour} is not installed, or was not installed when espalier was built")
        super().setUp()

    def run_under_mpirun(self, ranks, *words, program=(ESPALIER,)):
        environment = dict(os.environ, **ROOT, PYTHONPATH=str(SOURCE / "python"))
        answer = subprocess.run([self.mpirun, *self.flags, "-n", str(ranks), *map(str, program), *words], capture_output=True,
                                text=True, timeout=LIMIT_S, env=environment)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        return answer

    def test_c_library_sums_over_ranks(self):
        for program in ([os.environ["ESPALIER_C_EXAMPLE"]], ["/usr/bin/python3", SOURCE / "examples/python/all_reduce.py"]):
            answer = self.run_under_mpirun(2, program=program)
            for rank in (0, 1):
                self.assertIn(f"rank {rank} of 2", answer.stdout)

    def losses(self, name):
        return [row["loss"] for row in self.metrics(name)]

    def test_loss_equals_espalier_launch(self):
        words = ["--set", "run.threads=1", "--set", "comm.all_reduce=ring"]
        self.train("--nproc", "2", "--run-dir", self.path("ours"), *words, steps=8)
        for transport in ("auto", "mpi"):
            self.run_under_mpirun(2, "train", self.run_file(8), "--run-dir", self.path(transport), *words,
                                  "--set", f"comm.transport={transport}")
            self.assertEqual(self.losses(transport), self.losses("ours"))
            self.assert_same_checkpoint(8, "ours", transport)

    def test_pipeline_and_zero3_over_mpi_match_launcher(self):
        for name, sets in (("stages", ["parallel.tp=2", "parallel.pp=2"]), ("shards", ["sync.method=zero3"])):
            words = ["--set", "run.threads=1"] + [word for one in sets for word in ("--set", one)]
            self.train("--nproc", "4", "--run-dir", self.path(name), *words, steps=4)
            self.run_under_mpirun(4, "train", self.run_file(4), "--run-dir", self.path(name + "-mpi"), *words,
                                  "--set", "comm.transport=mpi")
            for ours, theirs in zip(self.losses(name), self.losses(name + "-mpi")):
                self.assertAlmostEqual(ours, theirs, delta=1e-5)

    def test_bench_measures_mpirun_ranks(self):
        answer = self.run_under_mpirun(3, "bench", "comm", "all_gather", "-b", "3K", "-n", "2", "--transport", "mpi",
                                       "--json", self.path("rows.json"))
        with open(self.path("rows.json")) as file:
            rows = json.load(file)
        self.assertEqual([(row["ranks"], row["transport"], row["bytes"], row["correct"]) for row in rows], [(3, "mpi", 3072, True)])
        self.assertEqual(answer.stdout.count("# all_gather"), 1)  # only one rank prints


class OpenMpi(MpirunTestCase):
    flavour, flags = "openmpi", ["--oversubscribe"]


class Mpich(MpirunTestCase):
    flavour = "mpich"


class MissingMpirun(TempFolderTestCase):
    def test_rejects_mpi_transport_without_mpirun(self):
        answer = self.train("--nproc", "2", "--set", "comm.transport=mpi", code=2)
        self.assertIn("mpirun -n 2 espalier", answer.stderr)

    def test_launched_bench_starts_no_ranks(self):
        answer = run("launch", "--nproc-per-node", "2", "--", "bench", "comm", "--nproc", "4", "-b", "1K")
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("Leave it out", answer.stderr)


if __name__ == "__main__":
    unittest.main()
