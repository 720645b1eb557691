"""Damaged, unwritable and malicious checkpoints. Every flipped bit must be detected before training and reported with its
file and tensor, and the previous checkpoint must be used. On a full or failing disk a checkpoint may be lost, but not the
run. A folder with links, devices and false metadata must be rejected. Prints its figures."""
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
from cli_runner import ESPALIER

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/golden")


class RunTestCase(unittest.TestCase):
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
    """[(first byte, end byte, name)] of a safetensors file."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
    return [(8 + length + entry["data_offsets"][0], 8 + length + entry["data_offsets"][1], name.split("@")[0])
            for name, entry in header.items() if name != "__metadata__"]


class BitFlips(RunTestCase):
    def test_bit_flips_are_detected_and_previous_checkpoint_is_used(self):
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
            # Half of the flips are uniform over all bytes, half in a random file, so that small files are covered too.
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
        print(f"{number} bits flipped in {len(files)} files of a checkpoint of 2 ranks: all detected, error names the file; "
              f"{in_tensors} of them in tensors, error names the tensor; the previous checkpoint was used each time")

    def test_run_resumes_from_previous_checkpoint_when_newest_is_damaged(self):
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


class DiskErrors(RunTestCase):
    """A disk that is full, failing, making short writes or read-only, at the N-th affected call."""
    KINDS = [("enospc", True), ("enospc", False), ("eio", True), ("eio", False), ("short", True), ("short", False),
             ("erofs", True), ("erofs", False)]

    def one(self, kind, sticky, at, whole, *words):
        name = self.path(f"{kind}-{sticky}-{at}-{len(words)}")
        os.mkdir(name)
        self.addCleanup(shutil.rmtree, name, ignore_errors=True)
        recorded = Recorded(name)
        recorded.log = "/dev/null"
        # If rank 0 cannot create a folder, it cannot notify the other ranks, and they wait for 30 s. Only in the long form.
        fault = dict(FAULT_KIND=kind, FAULT_AT=str(at), FAULT_UNDER="checkpoints" if LONG or not words else "safetensors")
        if sticky:
            fault |= dict(FAULT_STICKY="1", FAULT_MARK=name + ".mark")
        answer = recorded.train(*words, **fault)
        what = f"{kind}, call {at}{' and all after it' if sticky else ''}: exit {answer.returncode}: {answer.stderr}"
        self.assertIn(answer.returncode, (0, 4), what)
        cause = {"enospc": "No space left", "eio": "Input/output error", "erofs": "Read-only"}.get(kind)
        warned = "training continues without this checkpoint" in answer.stderr
        if answer.returncode == 4 or warned:
            # Ranks exchange errors through the disk, which may fail too.
            reason_missing = bool(words) and sticky and "its reason could not be written to disk" in answer.stderr
            self.assertTrue(reason_missing or cause in answer.stderr, what)
            self.assertIn("checkpoints", answer.stderr, what)
        found = self.probed(os.path.join(recorded.root, recorded.checkpoints))
        self.assertNotIn("refused", found, what)
        if found["found"]:
            self.assertEqual(found["bits"], whole[found["step"]], what)
        # When the disk works again, the run continues and is bit-identical to a run without faults.
        again = subprocess.run([ESPALIER, "train", os.path.join(name, "run.toml"), *words], capture_output=True,
                               text=True, timeout=100)
        self.assertEqual(again.returncode, 0, what + again.stderr)
        found = self.probed(os.path.join(recorded.root, recorded.checkpoints))
        self.assertEqual((found["step"], found["bits"]), (6, whole[6]), what)
        return answer.returncode, warned

    def test_failed_write_loses_checkpoint_but_not_run(self):
        """DISK=enospc,eio selects fault kinds. The long form runs 16 trials in parallel, because their ranks mostly wait."""
        kinds = [one for one in self.KINDS if one[0] in os.environ.get("DISK", "enospc,eio,short,erofs").split(",")]
        pool = concurrent.futures.ThreadPoolExecutor(16 if LONG else 1)
        self.addCleanup(pool.shutdown)
        counts, trials = {"continued with a warning": 0, "continued": 0, "stopped with 4": 0}, 0
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
                counts["stopped with 4" if code else "continued with a warning" if warned else "continued"] += 1
                trials += 1
        print(f"{trials} disk faults: " + ", ".join(f"{n} {what}" for what, n in counts.items()) +
              "; no complete checkpoint was lost, none was loaded partially, every run was bit-identical to a run without faults")


class MaliciousFolders(RunTestCase):
    """Checkpoint folders that were manipulated."""

    def setUp(self):
        super().setUp()
        self.checkpoints = self.path("checkpoints")
        shutil.copytree(os.path.join(GOLDEN, "v1"), self.checkpoints)  # version 1 has no checksum that the manipulated files would have to match
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

    def replace_model_file(self, make):
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
            return lambda: self.replace_model_file(lambda at: os.symlink(path, at))

        yield "a link to a file outside", to(self.path("outside")), "link"
        yield "a link to the moved file", lambda: as_link(self.model), "link"
        yield "a link to an endless device", to("/dev/zero"), "link"
        yield "a link to itself", to(self.model), "link"
        yield "a pipe without a writer", lambda: self.replace_model_file(os.mkfifo), "pipe"
        yield "a socket", lambda: self.replace_model_file(self.bind), "socket"
        yield "a folder instead of a file", lambda: self.replace_model_file(os.mkdir), "folder"
        yield "a missing file", lambda: os.remove(self.model), "model-00001"
        yield "an empty file", lambda: self.replace_model_file(lambda path: open(path, "w").close()), "0 bytes"
        yield "a truncated file", lambda: os.truncate(self.model, 100), "100 bytes"
        yield "a file extended by a hole", lambda: os.truncate(self.model, 1 << 40), "damaged"
        yield "a manifest that is a link", lambda: as_link(manifest), "link"
        yield "a manifest that is a pipe", lambda: (os.remove(manifest), os.mkfifo(manifest)), "pipe"
        for name in ("../outside", "/etc/passwd", "..", ".", "", "a/b", ".hidden",
                     "../step-3/model-00001-of-00002.safetensors"):
            yield f"file name {name!r}", self.renamed_file(name), "file name"
        yield "a file name with a zero", self.renamed_file("model\0x"), "model"
        yield "a manifest that lists itself", self.renamed_file("manifest.json"), "itself"
        yield "a manifest that is not JSON", lambda: self.manifest(lambda m: "{"), "manifest.json"
        yield "another format", lambda: self.manifest(lambda m: m | {"format": "pickle"}), "pickle"
        yield "a future version", lambda: self.manifest(lambda m: m | {"version": 99}), "99"
        yield "a missing checksum", lambda: self.manifest(lambda m: m | {"version": 2}), "checksum"
        yield "a repeated key", lambda: self.manifest(lambda m: json.dumps(m)[:-1] + ', "step": 4}'), "step"
        deep = ', "x": ' + "[" * 100000 + "]" * 100000 + "}"
        yield "deep nesting", lambda: self.manifest(lambda m: json.dumps(m)[:-1] + deep), "manifest.json"
        yield "a step that is not a number", lambda: self.manifest(lambda m: m | {"step": "three"}), "manifest.json"
        yield "a state that is a list", lambda: self.manifest(lambda m: m | {"state": []}), "state"
        yield "no tensors", lambda: self.manifest(lambda m: {k: v for k, v in m.items() if k != "tensors"}), "tensors"
        yield "negative sizes", self.first_piece(lambda t, p: t.update(shape=[-1, 8])), "negative"
        yield "sizes that overflow", self.first_piece(lambda t, p: t.update(shape=[1 << 40, 1 << 40])), "manifest.json"
        yield "seven dimensions", self.first_piece(lambda t, p: t.update(shape=[1] * 7)), "dimensions"
        yield "an unknown type", self.first_piece(lambda t, p: t.update(dtype="f1")), "f1"
        yield "a piece beyond its tensor", self.first_piece(lambda t, p: p.update(first=1 << 60)), "outside its tensor"
        yield "a piece before its tensor", self.first_piece(lambda t, p: p.update(first=-5)), "outside its tensor"
        yield "a repeated piece", self.first_piece(lambda t, p: t["pieces"].append(dict(p))), "more than once"
        yield "pieces that overlap", self.first_piece(lambda t, p: t["pieces"].append(p | {"count": 1})), "more than once"
        yield "a piece in an unlisted file", self.first_piece(lambda t, p: p.update(file="other.safetensors")), "not listed"
        yield "a piece with an unknown tensor name", self.first_piece(lambda t, p: p.update(key="nothing")), "nothing"

    def test_malicious_folders_are_refused_without_side_effects(self):
        number = 0
        whole = self.path("whole")
        shutil.copytree(self.checkpoints, whole, symlinks=True)
        for what, manipulate, word in self.cases():
            shutil.rmtree(self.checkpoints)
            shutil.copytree(whole, self.checkpoints)
            manipulate()
            with self.subTest(what):
                found = self.probed(self.checkpoints)
                self.assertIn("refused", found, found)
                self.assertIn(word, found["refused"])
                with open(self.path("outside")) as file:
                    self.assertEqual(file.read(), "not yours")
                number += 1
        print(f"{number} manipulated checkpoint folders: all rejected, each error names the cause")

    def test_linked_step_is_neither_read_nor_deleted(self):
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

    def test_written_files_are_private(self):
        recorded = self.trained()
        run = os.path.join(recorded.root, "runs/tiny")
        self.assertEqual(stat.S_IMODE(os.stat(run).st_mode), 0o700)


class OldFormats(RunTestCase):
    """Checkpoints in every version of the format, as written by that version."""

    def test_old_formats_are_read_exactly_and_resumed(self):
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
                # Other CPUs round differently.
                for got, wanted in zip(losses, expected["losses"], strict=True):
                    self.assertAlmostEqual(got, wanted, delta=1e-4)


if __name__ == "__main__":
    unittest.main()
