"""Faults of the machine: a wall clock that jumps, a cgroup with too little memory, a container that refuses system calls.
Prints its figures.

    CLOCK_SHIM=build/lib/libclock_shim.so ESPALIER=build/bin/espalier PYTHONPATH=tests/app:tests/e2e \\
        python3 tests/faults/machine_faults_test.py -v WallClock OutOfMemory RefusedSystemCalls
"""
import ctypes
import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from cli_runner import ESPALIER, ranks_of, wait_until
from recover_driving import Job

CLOCK_SHIM = os.environ.get("CLOCK_SHIM", "")


class TempFolderTestCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-machine-faults-")
        self.addCleanup(shutil.rmtree, self.folder)

    def job(self, name, steps, *settings, environment=None):
        job = Job(self.folder, name, steps, list(settings), ranks=2, environment=environment)
        self.addCleanup(job.end)
        return job


class WallClock(TempFolderTestCase):
    def test_wall_clock_jumps_have_no_effect(self):
        if not CLOCK_SHIM:
            self.skipTest("CLOCK_SHIM is not set")
        steps, settings = 400, ("checkpoint.snapshot_every=10", "checkpoint.every=50", "log.trace=true", "log.tensorboard=true")
        steady = self.job("steady", steps, *settings)
        self.assertEqual(steady.finish(), 0, "".join(steady.said))
        for name, more, environment in (("shm", (), {}), ("tls", ("comm.transport=tcp",), {"ESPALIER_ENCRYPT": "1"})):
            with self.subTest(name):
                self.check(steady, steps, self.job(name, steps, *settings, *more, environment={"LD_PRELOAD": CLOCK_SHIM, **environment}))

    def check(self, steady, steps, jumping):
        self.assertTrue(wait_until(lambda: jumping.step() >= 50 or not jumping.alive()))
        os.kill(ranks_of(jumping.process.pid)[1], signal.SIGKILL)
        self.assertEqual(jumping.finish(), 0, "".join(jumping.said))
        self.assertEqual(jumping.state(steps), steady.state(steps))
        self.assertEqual(jumping.restarts(), 1)
        lines = jumping.lines("metrics.jsonl")
        self.assertEqual([line["step"] for line in lines], list(range(1, steps + 1)))
        walls = [line["wall_s"] for line in lines]
        backwards = sum(later < earlier for earlier, later in zip(walls, walls[1:]))
        self.assertGreater(backwards, 0, "the clock shim had no effect")
        self.assertEqual([line["mono_s"] for line in lines], sorted(line["mono_s"] for line in lines))
        self.assertTrue(all(line["step_ms"] > 0 and line["tokens_per_s"] > 0 for line in lines))
        self.assertFalse([one for one in jumping.lines("events.jsonl") if one["event"] == "stall"])
        print(f"the wall clock went back {backwards} times within {steps} steps and a recovery: bit-identical, no false stall report")


class OutOfMemory(TempFolderTestCase):
    """Runs the job in a separate cgroup; skipped if no cgroup can be created."""

    def group(self, limit):
        for mount, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            group = f"{mount}/espalier-test-{os.getpid()}"
            try:
                os.mkdir(group)
                self.addCleanup(os.rmdir, group)
                with open(f"{group}/{name}", "w") as file:
                    file.write(str(limit))
                return group
            except OSError:
                continue
        self.skipTest("cannot create a cgroup")

    def test_out_of_memory_kill_is_reported(self):
        group = self.group(256 << 20)

        def enter():
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write(str(os.getpid()))

        greedy = "import os, time\nif os.environ['RANK'] == '1': x = bytearray(1 << 30)\ntime.sleep(60)"
        answer = subprocess.run([ESPALIER, "launch", "--nproc-per-node", "2", "--max-restarts", "0", "--", sys.executable, "-c", greedy],
                                capture_output=True, text=True, timeout=100, preexec_fn=enter)
        self.assertEqual(answer.returncode, 3, answer.stderr)
        self.assertRegex(answer.stderr, r"rank 1 .*killed \(SIGKILL, out of memory: give the job more memory, or use fewer ranks\)")

    def test_manual_kill_is_not_reported_as_out_of_memory(self):
        self.group(256 << 20)
        process = subprocess.Popen([ESPALIER, "launch", "--nproc-per-node", "2", "--max-restarts", "0", "--", "sleep", "60"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: len(ranks_of(process.pid)) == 2))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        self.assertIn("killed (SIGKILL)", errors)
        self.assertNotIn("out of memory", errors)


# x86-64 numbers of system calls that containers refuse by default (current or older versions), and optional ones.
CALLS = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "pidfd_open": 434, "pidfd_send_signal": 424,
         "pidfd_getfd": 438, "process_vm_readv": 310, "process_vm_writev": 311, "membarrier": 324, "memfd_create": 319,
         "sched_setaffinity": 203, "mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279,
         "perf_event_open": 298, "userfaultfd": 323, "ptrace": 101, "keyctl": 250, "bpf": 321, "mlock": 149, "mlock2": 325}


def refuse(numbers, error):
    """For preexec_fn: installs a seccomp filter under which these calls fail with `error`."""
    def install():
        instructions = [(0x20, 0, 0, 0)]  # load the system call number
        for i, number in enumerate(numbers):
            instructions.append((0x15, len(numbers) - i, 0, number))
        instructions += [(0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x00050000 | error)]  # allow; errno
        text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in instructions))

        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

        program = Program(len(instructions), ctypes.addressof(text))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(program), 0, 0) != 0:
            os._exit(99)
    return install


class RefusedSystemCalls(TempFolderTestCase):
    """System calls fail with EPERM, as under Docker's seccomp filter, or with ENOSYS, as on an old Linux version."""

    def setUp(self):
        super().setUp()
        if os.uname().machine != "x86_64":
            self.skipTest("the system call numbers are those of x86-64")
        if subprocess.run(["true"], preexec_fn=refuse([CALLS["keyctl"]], errno.EPERM)).returncode == 99:
            self.skipTest("cannot install a seccomp filter")
        with open(self.path("text.txt"), "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 400)
        with open(self.path("run.toml"), "w") as file:
            file.write(f"""
[run]
threads = 1
deterministic = true
[model]
layers = 1
heads = 2
dim = 32
seq_len = 32
[data]
train = "{self.path('text.txt')}"
[train]
steps = 12
global_batch = 8
eval_batches = 1
""")

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_under(self, error, name, *words, settings=()):
        words = [ESPALIER, *words, "train", self.path("run.toml"), "--run-dir", self.path(name)]
        for one in settings:
            words += ["--set", one]
        return subprocess.run(words, capture_output=True, text=True, timeout=100,
                              preexec_fn=refuse(list(CALLS.values()), error) if error else None)

    def losses(self, name):
        with open(self.path(name + "/metrics.jsonl")) as file:
            return [json.loads(line)["loss"] for line in file]

    def test_training_works_when_optional_system_calls_are_refused(self):
        launch = ("launch", "--nproc-per-node", "2", "--")
        for settings in ((), ("comm.transport=tcp",), ("sync.method=zero3",)):
            free = self.run_under(None, "free", *launch, settings=settings)
            self.assertEqual(free.returncode, 0, free.stderr)
            for error in (errno.EPERM, errno.ENOSYS):
                name = f"run-{error}"
                answer = self.run_under(error, name, *launch, settings=settings)
                self.assertEqual(answer.returncode, 0, answer.stderr)
                self.assertEqual(self.losses(name), self.losses("free"))
                self.assertIn("pidfd_open is not permitted", answer.stderr)
                shutil.rmtree(self.path(name))
            shutil.rmtree(self.path("free"))
        print(f"{len(CALLS)} system calls refused with EPERM and with ENOSYS: losses are equal")

    def test_file_tier_reports_missing_io_uring(self):
        settings = ("sync.offload=file",)
        free = self.run_under(None, "free", settings=settings)
        self.assertEqual(free.returncode, 0, free.stderr)
        answer = self.run_under(errno.EPERM, "refused", settings=settings)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(self.losses("refused"), self.losses("free"))
        self.assertRegex(answer.stderr, r"io_uring.*; the file tier uses \d+ threads instead")

    def test_killed_rank_is_detected_without_pidfd(self):
        process = subprocess.Popen(
            [ESPALIER, "launch", "--nproc-per-node", "2", "--", "train", self.path("run.toml"), "--run-dir", self.path("lost"),
             "--set", "train.steps=3000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=refuse(list(CALLS.values()), errno.ENOSYS))
        self.addCleanup(process.kill)
        metrics = self.path("lost/metrics.jsonl")
        self.assertTrue(wait_until(lambda: os.path.exists(metrics) and os.path.getsize(metrics) > 0))
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn("rank 1 killed (SIGKILL); recovered in", errors)


if __name__ == "__main__":
    unittest.main()
