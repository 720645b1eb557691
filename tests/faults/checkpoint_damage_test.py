"""Checkpoints that were damaged, or could not be written, or were made to harm: every flipped bit is found before
training and named with its file and tensor, the one before is used, a full or failing disk costs a checkpoint and not
the run, and a folder of links, devices and lies is refused. Prints its figures."""
import concurrent.futures
import json
import os
import random
import re
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
import unittest

from checkpoint_cut_test import LONG, PROBE, SHIM, Probe, Recorded
from checkpoint_disk import read_tree
from driving import ESPALIER

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/golden")


class WithRun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-damage-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def trained(self, name="plain", *words):
        os.mkdir(self.path(name))
        recorded = Recorded(self.path(name))
        answer = subprocess.run([ESPALIER, "train", os.path.join(recorded.folder, "run.toml"), *words],
                                capture_output=True, text=True, timeout=100)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return recorded

    def probed(self, folder):
        answer = subprocess.run([PROBE], input=folder + "\n", capture_output=True, text=True, timeout=20)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)


def tensors_of(path):
    """[(first byte, byte behind the last, name)] of a safetensors file."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    return [(8 + length + entry["data_offsets"][0], 8 + length + entry["data_offsets"][1], name.split("@")[0])
            for name, entry in header.items() if name != "__metadata__"]


class BitFlips(WithRun):
    def test_each_is_found_and_named_and_the_one_before_is_used(self):
        number = 10_000 if LONG else 200
        recorded = self.trained("two", "--nproc", "2", "--set", "sync.method=zero1")
        checkpoints = os.path.join(recorded.root, recorded.checkpoints)
        newest = os.path.join(checkpoints, "step-6")
        files = sorted(os.listdir(newest))
        self.assertIn("tokenizer.json", files)
        sizes = [os.path.getsize(os.path.join(newest, name)) for name in files]
        tensors = {name: tensors_of(os.path.join(newest, name)) for name in files if name.endswith(".safetensors")}
        chooser, probe, in_tensors = random.Random(5), Probe(self.folder), 0
        self.addCleanup(probe.close)
        self.assertEqual(probe.ask_folder(checkpoints)["step"], 6)
        for i in range(number):
            # Half of them anywhere, half in a file of its own choosing: small files have their share.
            k = chooser.choices(range(len(files)), sizes)[0] if i % 2 else chooser.randrange(len(files))
            at, bit = chooser.randrange(sizes[k]), chooser.randrange(8)
            path = os.path.join(newest, files[k])
            with open(path, "r+b") as file:
                file.seek(at)
                before = file.read(1)
                file.seek(at)
                file.write(bytes([before[0] ^ 1 << bit]))
                file.flush()
                found = probe.ask_folder(checkpoints)
                file.seek(at)
                file.write(before)
            where = f"bit {bit} of byte {at} of {files[k]}: {found}"
            self.assertEqual(found.get("step"), 4, where)
            self.assertIn(path, found["skipped"][0], where)
            for begin, end, name in tensors.get(files[k], []):
                if begin <= at < end:
                    in_tensors += 1
                    self.assertIn(name, found["skipped"][0], where)
        self.assertEqual(probe.ask_folder(checkpoints)["step"], 6)
        print(f"{number} flipped bits in {len(files)} files of a checkpoint by 2 ranks: {number} found, file named; "
              f"{in_tensors} of them in tensors, tensor named; the checkpoint before was used each time")

    def test_a_run_says_what_is_damaged_and_goes_on_from_the_one_before(self):
        recorded = self.trained()
        file = os.path.join(recorded.root, recorded.checkpoints, "step-6/model-00001-of-00001.safetensors")
        begin, _, name = tensors_of(file)[3]
        with open(file, "r+b") as damaged:
            damaged.seek(begin + 5)
            byte = damaged.read(1)[0]
            damaged.seek(begin + 5)
            damaged.write(bytes([byte ^ 16]))
        answer = subprocess.run([ESPALIER, "train", os.path.join(recorded.folder, "run.toml")], capture_output=True,
                                text=True, timeout=100)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn(f"{file}: damaged in {name}", answer.stderr)
        self.assertIn("step-4 at step 4", answer.stderr)


class Disk(WithRun):
    """A disk that is full, failing, slow to take all, or read-only, at the N-th call that minds."""
    KINDS = [("enospc", True), ("enospc", False), ("eio", True), ("eio", False), ("short", True), ("short", False),
             ("erofs", True), ("erofs", False)]

    def one(self, kind, sticky, at, whole, *words):
        name = self.path(f"{kind}-{sticky}-{at}-{len(words)}")
        os.mkdir(name)
        self.addCleanup(shutil.rmtree, name, ignore_errors=True)
        recorded = Recorded(name)
        recorded.log = "/dev/null"
        # Rank 0 that cannot make a folder cannot tell the others either; they wait for half a minute, which is for the
        # long form.
        fault = dict(FAULT_KIND=kind, FAULT_AT=str(at), FAULT_UNDER="checkpoints" if LONG or not words else "safetensors")
        if sticky:
            fault |= dict(FAULT_STICKY="1", FAULT_MARK=name + ".mark")
        answer = recorded.train(*words, **fault)
        what = f"{kind}, call {at}{' and all after it' if sticky else ''}: exit {answer.returncode}: {answer.stderr}"
        self.assertIn(answer.returncode, (0, 4), what)
        cause = {"enospc": "No space left", "eio": "Input/output error", "erofs": "Read-only"}.get(kind)
        warned = "training goes on" in answer.stderr
        if answer.returncode == 4 or warned:
            # Another rank's reason comes by way of the disk, which may refuse it too.
            unheard = bool(words) and sticky and "the disk did not take its reason" in answer.stderr
            self.assertTrue(unheard or cause in answer.stderr, what)
            self.assertIn("checkpoints", answer.stderr, what)
        found = self.probed(os.path.join(recorded.root, recorded.checkpoints))
        self.assertNotIn("refused", found, what)
        if found["found"]:
            self.assertEqual(found["bits"], whole[found["step"]], what)
        # With the disk well again the run goes on, to the bits of the one that was left in peace.
        again = subprocess.run([ESPALIER, "train", os.path.join(name, "run.toml"), *words], capture_output=True,
                               text=True, timeout=100)
        self.assertEqual(again.returncode, 0, what + again.stderr)
        found = self.probed(os.path.join(recorded.root, recorded.checkpoints))
        self.assertEqual((found["step"], found["bits"]), (6, whole[6]), what)
        return answer.returncode, warned

    def test_costs_a_checkpoint_and_not_the_run(self):
        """DISK=enospc,eio for some of the kinds alone. Runs of the long form wait for each other rather than compute."""
        kinds = [one for one in self.KINDS if one[0] in os.environ.get("DISK", "enospc,eio,short,erofs").split(",")]
        pool = concurrent.futures.ThreadPoolExecutor(16 if LONG else 1)
        self.addCleanup(pool.shutdown)
        counts, trials = {"went on, warned": 0, "went on": 0, "stopped with 4": 0}, 0
        for words in ((), ("--nproc", "2", "--set", "sync.method=zero1")):
            whole = {}
            recorded = self.trained(f"whole{len(words)}", *words, "--set", "checkpoint.keep=0")
            for step in (2, 4, 6):
                found = self.probed(os.path.join(recorded.root, recorded.checkpoints))
                whole[found["step"]] = found["bits"]
                shutil.rmtree(os.path.join(recorded.root, recorded.checkpoints, found["found"]))
            self.assertEqual(sorted(whole), [2, 4, 6])
            chooser = random.Random(len(words))
            runs = [pool.submit(self.one, kind, sticky, at, whole, *words)
                    for kind, sticky in (kinds if LONG else kinds[::2] if words else kinds[1::2])
                    for at in (range(1, 60, 2) if LONG else (chooser.randrange(2, 20),))]
            for one in runs:
                code, warned = one.result()
                counts["stopped with 4" if code else "went on, warned" if warned else "went on"] += 1
                trials += 1
        print(f"{trials} faults of the disk: " + ", ".join(f"{n} {what}" for what, n in counts.items()) +
              "; no checkpoint lost or torn, every run ended with the bits of an undisturbed one")


class Folders(WithRun):
    """Checkpoint folders that somebody made to harm."""

    def setUp(self):
        super().setUp()
        self.checkpoints = self.path("checkpoints")
        shutil.copytree(os.path.join(GOLDEN, "v1"), self.checkpoints)  # version 1 has no checksum to forge
        self.step = os.path.join(self.checkpoints, "step-3")
        self.model = os.path.join(self.step, "model-00001-of-00002.safetensors")
        with open(self.path("outside"), "w") as file:
            file.write("not yours")

    def manifest(self, change):
        path = os.path.join(self.step, "manifest.json")
        with open(path) as file:
            text = change(json.load(file))
        with open(path, "w") as file:
            file.write(text if isinstance(text, str) else json.dumps(text))

    def instead(self, make):
        os.remove(self.model)
        make(self.model)

    def renamed_file(self, name):
        def change(manifest):
            text = json.dumps(manifest)
            return text.replace('"model-00001-of-00002.safetensors"', json.dumps(name))
        return lambda: self.manifest(change)

    def first_piece(self, change):
        def edit(manifest):
            tensor = next(iter(manifest["tensors"].values()))
            change(tensor, tensor["pieces"][0])
            return manifest
        return lambda: self.manifest(edit)

    def bind(self, path):
        with socket.socket(socket.AF_UNIX) as one:
            at = os.getcwd()
            os.chdir(os.path.dirname(path))
            try:
                one.bind(os.path.basename(path))
            finally:
                os.chdir(at)

    def cases(self):
        manifest = os.path.join(self.step, "manifest.json")

        def as_link(path):
            os.rename(path, self.path("moved"))
            os.symlink(self.path("moved"), path)

        def to(path):
            return lambda: self.instead(lambda at: os.symlink(path, at))

        yield "a link to a file outside", to(self.path("outside")), "link"
        yield "a link to the very file", lambda: as_link(self.model), "link"
        yield "a link to an endless device", to("/dev/zero"), "link"
        yield "a link to itself", to(self.model), "link"
        yield "a pipe nobody writes to", lambda: self.instead(os.mkfifo), "pipe"
        yield "a socket", lambda: self.instead(self.bind), "socket"
        yield "a folder as a file", lambda: self.instead(os.mkdir), "folder"
        yield "a missing file", lambda: os.remove(self.model), "model-00001"
        yield "an empty file", lambda: self.instead(lambda path: open(path, "w").close()), "0 bytes"
        yield "a file cut short", lambda: os.truncate(self.model, 100), "100 bytes"
        yield "a file grown by holes", lambda: os.truncate(self.model, 1 << 40), "damaged"
        yield "a manifest that is a link", lambda: as_link(manifest), "link"
        yield "a manifest that is a pipe", lambda: (os.remove(manifest), os.mkfifo(manifest)), "pipe"
        for name in ("../outside", "/etc/passwd", "..", ".", "", "a/b", ".hidden",
                     "../step-3/model-00001-of-00002.safetensors"):
            yield f"file name {name!r}", self.renamed_file(name), "file name"
        yield "a file name with a zero", self.renamed_file("model\0x"), "model"
        yield "itself among its files", self.renamed_file("manifest.json"), "itself"
        yield "no JSON", lambda: self.manifest(lambda m: "{"), "manifest.json"
        yield "another format", lambda: self.manifest(lambda m: m | {"format": "pickle"}), "pickle"
        yield "a version to come", lambda: self.manifest(lambda m: m | {"version": 99}), "99"
        yield "a checksum left out", lambda: self.manifest(lambda m: m | {"version": 2}), "checksum"
        yield "a key twice", lambda: self.manifest(lambda m: json.dumps(m)[:-1] + ', "step": 4}'), "step"
        deep = ', "x": ' + "[" * 100000 + "]" * 100000 + "}"
        yield "deep nesting", lambda: self.manifest(lambda m: json.dumps(m)[:-1] + deep), "manifest.json"
        yield "a step that is a word", lambda: self.manifest(lambda m: m | {"step": "three"}), "manifest.json"
        yield "a state that is a list", lambda: self.manifest(lambda m: m | {"state": []}), "state"
        yield "no tensors", lambda: self.manifest(lambda m: {k: v for k, v in m.items() if k != "tensors"}), "tensors"
        yield "sizes below zero", self.first_piece(lambda t, p: t.update(shape=[-1, 8])), "negative"
        yield "sizes that overflow", self.first_piece(lambda t, p: t.update(shape=[1 << 40, 1 << 40])), "manifest.json"
        yield "seven dimensions", self.first_piece(lambda t, p: t.update(shape=[1] * 7)), "dimensions"
        yield "an unknown type", self.first_piece(lambda t, p: t.update(dtype="f1")), "f1"
        yield "a piece beyond its tensor", self.first_piece(lambda t, p: p.update(first=1 << 60)), "does not lie inside"
        yield "a piece before its tensor", self.first_piece(lambda t, p: p.update(first=-5)), "does not lie inside"
        yield "a piece twice", self.first_piece(lambda t, p: t["pieces"].append(dict(p))), "more than once"
        yield "pieces that overlap", self.first_piece(lambda t, p: t["pieces"].append(p | {"count": 1})), "more than once"
        yield "a piece of a file not listed", self.first_piece(lambda t, p: p.update(file="other.safetensors")), "not listed"
        yield "a piece of another name", self.first_piece(lambda t, p: p.update(key="nothing")), "nothing"

    def test_are_refused_and_nothing_outside_is_touched(self):
        number = 0
        whole = self.path("whole")
        shutil.copytree(self.checkpoints, whole, symlinks=True)
        for what, harm, word in self.cases():
            shutil.rmtree(self.checkpoints)
            shutil.copytree(whole, self.checkpoints)
            harm()
            with self.subTest(what):
                found = self.probed(self.checkpoints)
                self.assertIn("refused", found, found)
                self.assertIn(word, found["refused"])
                with open(self.path("outside")) as file:
                    self.assertEqual(file.read(), "not yours")
                number += 1
        print(f"{number} checkpoint folders made to harm: all refused with what is wrong")

    def test_a_step_that_is_a_link_is_neither_read_nor_emptied(self):
        elsewhere = self.path("elsewhere")
        os.rename(self.step, elsewhere)
        os.symlink(elsewhere, self.step)
        before = read_tree(elsewhere)
        self.assertIsNone(self.probed(self.checkpoints)["found"])
        recorded = Recorded(self.folder)
        answer = subprocess.run([ESPALIER, "train", self.path("run.toml"), "--set", f"checkpoint.dir={self.checkpoints}",
                                 "--set", "checkpoint.keep=1"], capture_output=True, text=True, timeout=100)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(read_tree(elsewhere), before)
        self.assertEqual(recorded.folder, self.folder)

    def test_what_is_written_is_the_owners(self):
        recorded = self.trained()
        run = os.path.join(recorded.root, "runs/tiny")
        self.assertEqual(stat.S_IMODE(os.stat(run).st_mode), 0o700)


class Golden(WithRun):
    """Checkpoints of every version of the format, as they were written then."""

    def test_are_read_to_the_bit_and_gone_on_from(self):
        with open(os.path.join(GOLDEN, "golden.json")) as file:
            golden = json.load(file)
        self.assertEqual(sorted(golden), sorted(name for name in os.listdir(GOLDEN)
                                                if os.path.isdir(os.path.join(GOLDEN, name))))
        for name, expected in golden.items():
            with self.subTest(name):
                found = self.probed(os.path.join(GOLDEN, name))
                self.assertEqual((found.get("step"), found.get("bits")), (3, expected["bits"]), found)
                run = self.path(name)
                shutil.copytree(os.path.join(GOLDEN, name), os.path.join(run, "checkpoints"))
                answer = subprocess.run(
                    [ESPALIER, "train", os.path.join(GOLDEN, "run.toml"), "--run-dir", run, "--continue-with-changes", "--set",
                     f"data.train={GOLDEN}/text.txt", *(word.format(golden=GOLDEN) for word in expected["words"])],
                    capture_output=True, text=True, timeout=100)
                self.assertEqual(answer.returncode, 0, answer.stderr)
                self.assertIsNotNone(re.search("resumed from .* at step 3", answer.stderr), answer.stderr)
                with open(os.path.join(run, "metrics.jsonl")) as file:
                    losses = [json.loads(line)["loss"] for line in file]
                # Other processors round otherwise.
                for got, wanted in zip(losses, expected["losses"], strict=True):
                    self.assertAlmostEqual(got, wanted, delta=1e-4)


if __name__ == "__main__":
    unittest.main()
