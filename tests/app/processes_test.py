"""Tests that no process, shared-memory segment or folder remains after a run; also error messages and secrets."""
import glob
import os
import signal
import tempfile
import unittest

from cli_runner import children, running, start, wait_until

# A run that lasts until it is killed.
ENDLESS_RUN = ["bench", "comm", "--nproc", "3", "-b", "1M", "-n", "1000000", "-c", "0"]
RANK_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "ESPALIER_JOB",
                  "ESPALIER_SECRET_FD"}


class Running(unittest.TestCase):
    folder = None

    def setUp(self):
        self.parent = start(*ENDLESS_RUN, env={"TMPDIR": self.folder.name} if self.folder else None)
        self.addCleanup(self.end)
        # The header is printed once all ranks are connected.
        for line in self.parent.stdout:
            if "Rank  2" in line:
                break
        self.ranks = children(self.parent.pid)
        self.assertEqual(len(self.ranks), 3)

    def end(self):
        self.parent.kill()
        self.parent.communicate()


class Orphans(Running):
    def test_killing_the_parent_ends_every_rank(self):
        os.kill(self.parent.pid, signal.SIGKILL)
        self.parent.wait()
        for rank in self.ranks:
            self.assertTrue(wait_until(lambda r=rank: not running(r)), f"rank process {rank} is still running")

    def test_interrupting_the_parent_ends_every_rank(self):
        os.kill(self.parent.pid, signal.SIGINT)
        self.parent.wait()
        for rank in self.ranks:
            self.assertTrue(wait_until(lambda r=rank: not running(r)), f"rank process {rank} is still running")


class Secrets(Running):
    def test_secret_is_not_in_arguments_or_environment(self):
        for rank in self.ranks:
            with open(f"/proc/{rank}/environ", "rb") as file:
                given = dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if entry)
            added = {name.decode(): value.decode() for name, value in given.items() if os.environb.get(name) != value}
            self.assertLessEqual(set(added), RANK_VARIABLES)
            self.assertEqual(added["ESPALIER_SECRET_FD"], "3")
            # The added variables are too short for 32 random bytes.
            self.assertTrue(all(len(value) <= 22 for value in added.values()), added)
            with open(f"/proc/{rank}/cmdline", "rb") as file:
                words = file.read().decode().split("\0")[1:-1]
            self.assertEqual([words[0]] + words[1::2], ["bench-rank", "--socket", "--label", "--transport"])
            # The pipe that passed the secret is closed.
            self.assertFalse(any(os.readlink(link).startswith("pipe:") and link.endswith("/3")
                                 for link in glob.glob(f"/proc/{rank}/fd/*") if os.path.islink(link)))


class Faults(Running):
    def test_reports_killed_rank_and_signal(self):
        os.kill(self.ranks[1], signal.SIGKILL)
        _, errors = self.parent.communicate(timeout=60)
        self.assertEqual(self.parent.returncode, 3, errors)
        self.assertIn("killed (SIGKILL)", errors)
        for rank in self.ranks:
            self.assertTrue(wait_until(lambda r=rank: not running(r)))


class Leftovers(Running):
    """Segment names contain the id of the creating process, and folders are in TMPDIR, so other runs on this machine do not
    interfere."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        super().setUp()

    def test_run_leaves_no_files_or_segments(self):
        os.kill(self.parent.pid, signal.SIGINT)
        self.parent.wait()
        segments = [path for pid in [self.parent.pid] + self.ranks for path in glob.glob(f"/dev/shm/espalier-{pid}-*")]
        self.assertEqual(segments + os.listdir(self.folder.name), [])


if __name__ == "__main__":
    unittest.main()
