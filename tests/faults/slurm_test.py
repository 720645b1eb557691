"""A real Slurm with one node, from Debian's packages, started for this test with its own configuration, key and ports. srun
starts two ranks of `espalier train`, which connect and train. Skipped with a message if Slurm or munge is not installed,
cannot be started (it needs root), or provides no node."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

from cli_runner import ESPALIER, free_ports, wait_until

SOURCE = pathlib.Path(__file__).resolve().parents[2]
DAEMONS = ["munged", "slurmctld", "slurmd"]
CONF = """
ClusterName=espalier
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


class Srun(unittest.TestCase):
    def setUp(self):
        missing = [name for name in [*DAEMONS, "srun", "sinfo"]
                   if not shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin")]
        if missing:
            self.skipTest(f"{', '.join(missing)} is not installed (Debian: slurmctld slurmd slurm-client munge)")
        if os.geteuid() != 0:
            self.skipTest("slurmd needs root")
        self.folder = tempfile.mkdtemp(prefix="espalier-slurm-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.processes = []
        self.addCleanup(self.end)
        self.start()

    def path(self, name):
        return os.path.join(self.folder, name)

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def daemon(self, *words):
        out = open(self.path(words[0] + ".out"), "w")
        self.addCleanup(out.close)
        environment = dict(os.environ, SLURM_CONF=self.path("slurm.conf"), PATH=os.environ.get("PATH", "") + ":/usr/sbin")
        self.processes.append(subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, env=environment))

    def start(self):
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            os.mkdir(self.path(name))
        os.chmod(self.folder, 0o755)
        with open(os.open(self.path("key"), os.O_WRONLY | os.O_CREAT, 0o400), "wb") as file:
            file.write(os.urandom(128))
        with open(self.path("slurm.conf"), "w") as file:
            file.write(CONF.format(host=host, folder=self.folder, ports=free_ports(2)))
        self.daemon("munged", "--foreground", "--force", "--key-file", self.path("key"), "--socket",
                    self.path("munge.socket"), "--pid-file", self.path("munged.pid"), "--log-file",
                    self.path("munged.log"), "--seed-file", self.path("munged.seed"), "--num-threads", "2")
        if not wait_until(lambda: os.path.exists(self.path("munge.socket")), 10):
            self.skipTest("munged does not start: " + self.said("munged"))
        self.daemon("slurmctld", "-D", "-i")
        self.daemon("slurmd", "-D", "-N", host)
        if not wait_until(lambda: "idle" in self.slurm("sinfo", "-h", "-o", "%t").stdout or not self.all_alive(), 30) \
                or not self.all_alive():
            self.skipTest("Slurm provides no node: " + self.said("slurmctld") + self.said("slurmd"))

    def all_alive(self):
        return all(process.poll() is None for process in self.processes)

    def said(self, name):
        with open(self.path(name + ".out")) as file:
            return " | ".join(file.read().splitlines()[-6:])

    def slurm(self, *words, limit=60):
        return subprocess.run(words, capture_output=True, text=True, timeout=limit,
                              env=dict(os.environ, SLURM_CONF=self.path("slurm.conf")))

    def run_file(self):
        with open(self.path("text.txt"), "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 100)
        with open(self.path("run.toml"), "w") as file:
            file.write(f'[run]\ndir = "{self.folder}/run"\nthreads = 1\n[model]\nlayers = 1\ndim = 16\nseq_len = 16\n'
                       f'[data]\ntrain = "{self.folder}/text.txt"\n[train]\nsteps = 5\n')
        return self.path("run.toml")

    def losses(self):
        with open(self.path("run/metrics.jsonl")) as file:
            return [json.loads(line)["loss"] for line in file]

    def test_two_ranks_join_and_train(self):
        answer = self.slurm("srun", "-n", "2", "--export=ALL", ESPALIER, "train", self.run_file())
        self.assertEqual(answer.returncode, 0, answer.stderr)
        with open(self.path("run/summary.json")) as file:
            summary = json.load(file)
        self.assertEqual((summary["world"], summary["steps"]), (2, 5))
        joined = self.losses()
        direct = subprocess.run([ESPALIER, "train", self.run_file(), "--nproc", "2", "--resume", "none"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(direct.returncode, 0, direct.stderr)
        self.assertEqual(joined, self.losses())
        print("srun -n 2 espalier train: 2 ranks joined and trained 5 steps under "
              + self.slurm("srun", "--version").stdout.strip())

    def test_c_library_sums_over_ranks(self):
        for program in ([os.environ["ESPALIER_C_EXAMPLE"]],
                        ["env", f"PYTHONPATH={SOURCE / 'python'}", "/usr/bin/python3", SOURCE / "examples/python/all_reduce.py"]):
            answer = self.slurm("srun", "-n", "2", "--export=ALL", *map(str, program))
            self.assertEqual(answer.returncode, 0, answer.stderr)
            for rank in (0, 1):
                self.assertIn(f"rank {rank} of 2", answer.stdout)

    def test_single_task_trains(self):
        answer = self.slurm("srun", "-n", "1", ESPALIER, "train", self.run_file())
        self.assertEqual(answer.returncode, 0, answer.stderr)
        with open(self.path("run/summary.json")) as file:
            self.assertEqual(json.load(file)["world"], 1)


if __name__ == "__main__":
    unittest.main()
