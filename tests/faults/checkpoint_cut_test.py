"""Power loss at every call that writes a checkpoint. For every possible state of the disk (checkpoint_disk.py) the loader
must find the newest complete checkpoint and never load a partially written one. The calls are recorded
from the real binary with one and two ranks. Covers runs that resume from an older step and move later checkpoints aside,
and a checkpoint that replaces a damaged one of the same step. Prints the number of disk states checked."""
import hashlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import unittest

from checkpoint_disk import Disk, read_log, read_tree, write_tree
from cli_runner import ESPALIER

SHIM = os.environ.get("CHECKPOINT_SHIM", "build/lib/libcheckpoint_shim.so")
PROBE = os.environ.get("CHECKPOINT_PROBE", "build/bin/checkpoint_probe")
LONG = "ESPALIER_TEST_LONG" in os.environ
MOST_CUTS = 10**9 if LONG else 40  # per scenario
NUM_RANDOM = 12 if LONG else 1

RUN = """
[run]
dir = "{root}/runs/tiny"
seed = 7
threads = 1
[model]
arch = "gpt"
layers = 1
heads = 1
dim = 8
ffn = 8
seq_len = 8
[data]
train = "{folder}/text.txt"
tokenizer = "{folder}/tokenizer.json"
[train]
steps = 6
global_batch = 2
lr = 1e-2
[checkpoint]
every = 2
keep = 2
[log]
tensorboard = false
"""


class Probe:
    """Runs Espalier's own loader on folder trees, once for each distinct tree."""

    def __init__(self, folder):
        self.folder, self.known, self.num_asked = folder, {}, 0
        self.process = subprocess.Popen([PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)

    def ask_folder(self, folder):
        print(folder, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def ask(self, tree):
        digest = hashlib.sha256(repr(sorted(tree.items(), key=lambda item: item[0])).encode()).digest()
        if digest not in self.known:
            self.num_asked += 1
            at = os.path.join(self.folder, str(self.num_asked))
            os.mkdir(at)
            write_tree(tree, at)
            self.known[digest] = self.ask_folder(at)
            shutil.rmtree(at)
        return self.known[digest]


class Recorded:
    """Records the file-system calls of real runs below one folder."""

    def __init__(self, folder):
        self.folder, self.root = folder, os.path.join(folder, "root")
        self.log, self.checkpoints = os.path.join(folder, "calls"), "runs/tiny/checkpoints"
        os.mkdir(self.root)
        with open(os.path.join(folder, "text.txt"), "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 40)
        subprocess.run([ESPALIER, "tokenizer", "train", "--vocab", "260", "--output",
                        os.path.join(folder, "tokenizer.json"), os.path.join(folder, "text.txt")], check=True,
                       capture_output=True, timeout=60)
        with open(os.path.join(folder, "run.toml"), "w") as file:
            file.write(RUN.format(root=self.root, folder=folder))

    def damage(self, step):
        """Damages one byte of a checkpoint. Returns (number of calls recorded before the damage, path, (offset, byte))."""
        folder = os.path.join(self.root, self.checkpoints, f"step-{step}")
        name = next(one for one in sorted(os.listdir(folder)) if one.startswith("model-"))
        with open(os.path.join(folder, name), "r+b") as file:
            at = file.seek(-1, os.SEEK_END)
            byte = bytes([file.read(1)[0] ^ 1])
            file.seek(at)
            file.write(byte)
        return len(read_log(self.log, self.root)), f"{self.checkpoints}/step-{step}/{name}", (at, byte)

    def train(self, *words, **fault):
        environment = dict(os.environ, LD_PRELOAD=SHIM, FAULT_ROOT=self.root, FAULT_LOG=self.log, **fault)
        return subprocess.run([ESPALIER, "train", os.path.join(self.folder, "run.toml"), *words], env=environment,
                              capture_output=True, text=True, timeout=300 if LONG else 100)


class PowerCut(unittest.TestCase):
    def setUp(self):
        # Tens of thousands of small files: use a tmpfs if there is one.
        self.folder = tempfile.mkdtemp(prefix="espalier-cut-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.addCleanup(shutil.rmtree, self.folder)
        self.probe = Probe(self.folder)
        self.addCleanup(self.probe.close)

    def enumerate(self, name, *words, **fault):
        recorded = Recorded(self.folder)
        for more in ((), ("--resume", os.path.join(recorded.root, recorded.checkpoints, "step-4")), "damage",
                     (), ("--set", "train.steps=8")):
            if more == "damage":
                damaged = recorded.damage(6)
                continue
            answer = recorded.train(*words, *more, **fault)
            self.assertEqual(answer.returncode, 0, answer.stderr)
        calls = read_log(recorded.log, recorded.root)
        calls.insert(damaged[0], ("damage", *damaged[1:]))
        where = recorded.checkpoints
        above = (".", "runs", "runs/tiny")
        relevant = [i for i, (_, path, _) in enumerate(calls) if path.startswith(where) or path in above]
        chooser = random.Random(1)
        cuts = set(relevant if len(relevant) <= MOST_CUTS else chooser.sample(relevant, MOST_CUTS))

        disk, safe_step, renamed, bits = Disk(), None, None, {}
        num_cuts = num_states = 0
        for i, (call, path, more) in enumerate(calls):
            if i in cuts:
                num_cuts += 1
                halves = [None]
                if call == "write":
                    halves.append((more[0], more[1][:len(more[1]) // 2]))
                for half in halves:
                    file = disk.find(path) if half else None
                    if half:
                        file.pending.append(half)
                    for survives in self.choices(chooser):
                        num_states += 1
                        self.check(self.below(disk.after_cut(survives), where), safe_step, bits,
                                   f"{name}: call {i}, {call} {path}")
                    if half:
                        file.pending.pop()
            if call == "damage":
                disk.do("write", path, more)
                disk.do("sync", path, None)
                safe_step = 4
                continue
            disk.do(call, path, more)
            if call == "rename" and os.path.dirname(path) == where and "/step-" in path and not more.startswith(where):
                safe_step = 4  # the step that the run resumed from
            if call in ("rename", "exchange") and os.path.dirname(more) == where and "/step-" in more:
                renamed = int(more.rsplit("-", 1)[1])
            if call == "sync" and path == where and renamed is not None:
                found = self.probe.ask(self.below(disk.after_cut(lambda kind: True), where))
                self.assertEqual(found.get("step"), renamed, f"{name}: call {i}: {found}")
                bits.setdefault(renamed, found["bits"])
                safe_step, renamed = max(safe_step or 0, renamed), None
        # The recording must be complete: replaying it gives the same files.
        self.assertEqual(self.below(disk.after_cut(lambda kind: True), where),
                         read_tree(os.path.join(recorded.root, where)))
        self.assertEqual(sorted(bits), [2, 4, 6, 8])
        print(f"{name}: {len(relevant)} calls, power cut at {num_cuts}, {num_states} disk states "
              f"({self.probe.num_asked} different): no partial checkpoint loaded, newest complete checkpoint found in all")

    @staticmethod
    def choices(chooser):
        yield lambda kind: True
        yield lambda kind: False
        yield lambda kind: kind == "name"
        yield lambda kind: kind == "data"
        for _ in range(NUM_RANDOM):
            yield lambda kind: chooser.random() < 0.5

    @staticmethod
    def below(tree, where):
        return {path[len(where) + 1:]: content for path, content in tree.items() if path.startswith(where + "/")}

    def check(self, tree, safe_step, bits, where):
        found = self.probe.ask(tree)
        self.assertNotIn("refused", found, where)
        if safe_step is not None:
            self.assertIsNotNone(found["found"], where)
            self.assertGreaterEqual(found["step"], safe_step, f"{where}: {found}")
        if found["found"] and found["step"] in bits:
            self.assertEqual(found["bits"], bits[found["step"]], where)

    def test_power_cut_on_one_rank_keeps_checkpoint(self):
        self.enumerate("1 rank")

    def test_power_cut_without_rename_exchange_keeps_checkpoint(self):
        self.enumerate("1 rank, no exchange", FAULT_NO_EXCHANGE="1")

    def test_power_cut_on_two_ranks_keeps_checkpoint(self):
        self.enumerate("2 ranks", "--nproc", "2", "--set", "sync.method=zero1")


if __name__ == "__main__":
    unittest.main()
