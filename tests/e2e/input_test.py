"""End-to-end tests of data inputs: rejected formats, data keys, records, class labels, and evaluation inputs."""
import bz2
import gzip
import json
import lzma
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import tarfile
import threading
import unittest
import zipfile

from cli_runner import ESPALIER, run
from train_test import TempFolderTestCase

WORDS = "the quick brown fox jumps over the lazy dog. "


class SpanCorruption(TempFolderTestCase):
    def test_error_names_largest_mask_rate(self):
        words = ["--set", "model.arch=t5"]
        for ranks in ([], ["--nproc", "2"]):
            answer = self.train(*words, *ranks, "--set", "data.mask_rate=0.9", steps=1, code=2)
            largest = re.search(r"data.mask_rate = 0.9: .* must be <= (0\.\d+) with model.seq_len = ", answer.stderr)
            self.assertIsNotNone(largest, answer.stderr)
        self.train(*words, "--set", f"data.mask_rate={largest.group(1)}", steps=1)
        above = round(float(largest.group(1)) + 0.01, 2)
        self.train(*words, "--set", f"data.mask_rate={above}", "--run-dir", self.path("above"), steps=1, code=2)


class NonTextFiles(TempFolderTestCase):
    """Passes the same invalid files to every option and key that takes data."""

    def make(self):
        """Writes invalid files with enough text to train on. Returns {file name: format named in the error}."""
        text = (WORDS * 400).encode()
        with tarfile.open(self.path("a.tar"), "w") as file:
            file.add(self.path("text.txt"), "text.txt")
        with zipfile.ZipFile(self.path("a.zip"), "w") as file:
            file.writestr("text.txt", WORDS * 400)
        database = sqlite3.connect(self.path("a.db"))
        database.execute("CREATE TABLE t (text TEXT)")
        database.executemany("INSERT INTO t VALUES (?)", [(WORDS * 4,)] * 100)
        database.commit()
        database.close()
        shutil.copy(ESPALIER, self.path("program"))
        noise = bytes((i * i * 7 + i * 131) % 256 for i in range(40000))
        for name, content in {
                "a.parquet": b"PAR1" + noise + b"PAR1", "a.arrow": b"ARROW1\0\0" + noise, "stream.arrow": b"\xff\xff\xff\xff" + noise,
                "a.npy": b"\x93NUMPY\x01\0v\0" + noise, "a.pt": b"PK\x03\x04" + b"\0" * 26 + b"archive/data.pkl" + noise,
                "a.pdf": b"%PDF-1.4\n" + text, "a.png": b"\x89PNG\r\n\x1a\n" + noise, "parquet.txt": b"PAR1" + noise,
                "late.txt": text * 20 + noise * 4, "a.xz": lzma.compress(text), "a.bz2": bz2.compress(text), "a.dat": noise,
                "utf16.txt": text.decode().encode("utf-16"), "latin1.txt": ("déjà vu, naïve " * 2000).encode("latin-1")}.items():
            with open(self.path(name), "wb") as file:
                file.write(content)
        return {"a.parquet": "a Parquet file", "a.arrow": "an Arrow file", "stream.arrow": "an Arrow stream",
                "a.npy": "a NumPy array", "a.pt": "a PyTorch file", "a.pdf": "a PDF document", "a.png": "a PNG image",
                "parquet.txt": "a Parquet file", "late.txt": "a binary file", "a.xz": "xz data", "a.bz2": "bzip2 data",
                "a.dat": "a binary file", "utf16.txt": "UTF-16 text", "latin1.txt": "text in another encoding",
                "a.tar": "a tar archive", "a.zip": "a ZIP archive", "a.db": "an SQLite database", "program": "an ELF executable"}

    def assert_not_text(self, name, what, *arguments):
        answer = run(*arguments)
        self.assertEqual(answer.returncode, 4, (name, arguments, answer.stdout, answer.stderr))
        self.assertIn(f"{self.path(name)}: got {what}", answer.stderr, arguments)
        self.assertIn("expected UTF-8 text", answer.stderr)
        self.assertEqual(answer.stderr.count("\n"), 1, answer.stderr)

    def test_rejects_binary_files(self):
        self.train(steps=2)
        files = self.make()
        for name, what in files.items():
            path = self.path(name)
            out = ["--run-dir", self.path("out")]
            self.assert_not_text(name, what, "train", self.run_file(), *out, "--set", f"data.train={path}")
            self.assert_not_text(name, what, "data", "prepare", path, "-o", self.path("out.bin"))
            self.assert_not_text(name, what, "tokenizer", "train", path, "--vocab", "300", "-o", self.path("tok.json"))
            self.assert_not_text(name, what, "tokenizer", "encode", "-t", "byte", path)
            self.assert_not_text(name, what, "eval", "--checkpoint", self.path("run"), "--text", path)
            if not name.endswith((".txt", ".db")):
                continue
            self.assert_not_text(name, what, "train", self.run_file(), *out, "--set", f"data.val={path}",
                                 "--set", "data.val_fraction=0")
            self.assert_not_text(name, what, "train", self.run_file(), "--nproc", "2", *out, "--set", f"data.train={path}")
            self.assert_not_text(name, what, "data", "info", path)
            pattern = os.path.join(self.folder, "[" + name[0] + "]" + name[1:])
            self.assert_not_text(name, what, "data", "prepare", pattern, "-o", self.path("out.bin"))
        self.assertFalse(any(os.path.exists(self.path(name)) for name in ("out", "out.bin", "tok.json")))

    def test_saved_dataset_error_names_conversion_command(self):
        os.makedirs(self.path("saved"))
        for name in ("dataset_info.json", "state.json"):
            with open(self.path("saved/" + name), "w") as file:
                json.dump({"citation": "", "description": WORDS * 200}, file, indent=2)
        with open(self.path("saved/data-00000-of-00001.arrow"), "wb") as file:
            file.write(b"\xff\xff\xff\xff" + b"\0" * 1000)
        answer = run("train", self.run_file(), "--set", f"data.train={self.path('saved')}")
        self.assertEqual(answer.returncode, 4, answer.stderr)
        self.assertIn("got a folder saved by Hugging Face datasets", answer.stderr)
        self.assertIn(f"load_from_disk('{self.path('saved')}').to_json('{self.path('saved')}.jsonl')", answer.stderr)

    def test_rejects_folder_with_compressed_shards(self):
        os.makedirs(self.path("corpus"))
        with open(self.path("corpus/README.md"), "w") as file:
            file.write(WORDS * 400)
        record = json.dumps({"text": WORDS * 10}).encode() + b"\n"
        with open(self.path("corpus/shard.jsonl.xz"), "wb") as file:
            file.write(lzma.compress(record * 40))
        for words in (["train", self.run_file(), "--set", f"data.train={self.path('corpus')}"],
                      ["data", "prepare", self.path("corpus"), "-o", self.path("out.bin")]):
            self.assert_not_text("corpus/shard.jsonl.xz", "xz data", *words)
        os.remove(self.path("corpus/shard.jsonl.xz"))
        with zipfile.ZipFile(self.path("corpus/shard.txt"), "w") as file:  # stored, under the name of a text
            file.writestr("text.txt", WORDS * 25_000)
        self.assert_not_text("corpus/shard.txt", "a ZIP archive", "data", "prepare", self.path("corpus"), "-o", self.path("out.bin"))

    def test_warns_about_files_beside_token_files(self):
        os.makedirs(self.path("corpus"))
        answer = run("data", "prepare", self.path("text.txt"), "-o", self.path("corpus/a.bin"))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        answer = self.train("--set", f"data.train={self.path('corpus')}", steps=1)
        self.assertNotIn("files are not read", answer.stderr)
        shutil.copy(self.path("text.txt"), self.path("corpus/b.txt"))
        answer = self.train("--set", f"data.train={self.path('corpus')}", "--resume", "none", steps=1)
        self.assertEqual(answer.stderr.count("1 of 3 files are not read, such as "), 1, answer.stderr)

    def test_rejects_run_or_model_folder_as_corpus(self):
        self.train(steps=2)
        subprocess.run([ESPALIER, "convert", self.path("run"), self.path("hf")], check=True, capture_output=True)
        for folder, what in (("run", "a run folder"), ("run/checkpoints", "a checkpoint"), ("hf", "a Hugging Face model"), ("", "")):
            answer = run("train", self.run_file(), "--run-dir", self.path("out"), "--set", "data.train=" + self.path(folder))
            self.assertEqual(answer.returncode, 4, answer.stderr)
            self.assertIn(f"got {what}" if what else "expected text, JSON lines", answer.stderr)

    def test_rejects_pipes_and_devices_without_blocking(self):
        os.mkfifo(self.path("pipe"))
        for path, what in ((self.path("pipe"), "a pipe"), ("/dev/zero", "a device")):
            for arguments in (("train", self.run_file(), "--set", "data.train=" + path), ("data", "prepare", path, "-o", self.path("o")),
                              ("tokenizer", "train", path, "--vocab", "300", "-o", self.path("t"))):
                answer = run(*arguments)
                self.assertEqual(answer.returncode, 4, answer.stderr)
                self.assertIn(f"{path}: got {what}", answer.stderr)

    def test_reads_pipe_where_one_pass_suffices(self):
        self.train(steps=2)
        os.mkfifo(self.path("pipe"))

        def feed():
            with open(self.path("pipe"), "w") as pipe:
                pipe.write("the lazy dog")
        for arguments, expected in ((("tokenizer", "encode", "-t", "byte"), "116 104 101"), (("eval", "--checkpoint", self.path("run"), "--text"), "tokens 11")):
            writer = threading.Thread(target=feed)
            writer.start()
            answer = run(*arguments, self.path("pipe"))
            writer.join()
            self.assertIn(expected, answer.stdout, answer.stderr)

    def test_warns_when_validation_files_are_training_files(self):
        os.makedirs(self.path("corpus"))
        for name in ("a.txt", "b.txt"):
            shutil.copy(self.path("text.txt"), self.path("corpus/" + name))
        answer = self.train("--set", f"data.train={self.path('corpus')}", "--set", f"data.val={self.path('corpus/b.txt')}",
                            "--set", "data.val_fraction=0", steps=2)
        self.assertEqual(answer.stderr.count("data.val: 1 of its 1 files are in data.train too"), 1, answer.stderr)
        answer = self.train("--set", f"data.train=[\"{self.path('text.txt')}\", \"{self.path('text.txt')}\"]", "--resume", "none",
                            "--run-dir", self.path("twice"), steps=2)
        self.assertEqual(answer.stderr.count("text.txt is given more than once"), 1, answer.stderr)


class TokenFiles(TempFolderTestCase):
    """A file named .bin must contain token ids; its bytes decide, not its name."""

    def test_rejects_bin_files_of_other_formats(self):
        text = (WORDS * 400).encode()
        with zipfile.ZipFile(self.path("model.bin"), "w") as file:
            file.writestr("archive/data.pkl", text)
        ids = struct.pack("<4000I", *(300 + i % 50 for i in range(4000)))
        for name, content, says in (("text.bin", text, "got text; expected token ids"),
                                    ("gz.bin", gzip.compress(os.urandom(9000)), "got gzip data"),
                                    ("npy.bin", b"\x93NUMPY\1\0v\0" + ids, "got a NumPy array"),
                                    ("model.bin", None, "got a PyTorch file"),
                                    ("wide.bin", ids, "as if uint32 ids were read as uint16")):
            if content is not None:
                with open(self.path(name), "wb") as file:
                    file.write(content[:len(content) // 4 * 4])
            for words in (["train", self.run_file(), "--set", "model.vocab=65536", "--set", "data.train=" + self.path(name)],
                          ["data", "info", self.path(name)]):
                answer = run(*words)
                self.assertEqual(answer.returncode, 4, (name, answer.stderr))
                self.assertIn(says, answer.stderr)
        self.train("--set", "model.vocab=65536", "--set", "data.train=" + self.path("wide.bin"), "--set", "data.bin_type=u32",
                   steps=1)

    def test_rejects_output_path_that_is_an_input(self):
        with open(self.path("text.txt"), "rb") as file:
            before = file.read()
        for words in (["data", "prepare", self.path("text.txt"), "-o", self.path("text.txt")],
                      ["data", "prepare", self.folder, "-o", self.path("./text.txt")],
                      ["tokenizer", "train", self.path("text.txt"), "--vocab", "300", "-o", self.path("text.txt")],
                      ["tokenizer", "train", self.folder, "--vocab", "300", "-o", self.path("../" + os.path.basename(self.folder) + "/text.txt")]):
            answer = run(*words)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn("which is read as input", answer.stderr)
        self.train(steps=1)
        answer = run("eval", "--checkpoint", self.path("run"), "--text", self.path("text.txt"), "--json", self.path("text.txt"))
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("--json: got " + self.path("text.txt") + ", which is read as input", answer.stderr)
        with open(self.path("text.txt"), "rb") as file:
            self.assertEqual(file.read(), before)

    def test_prepare_rejects_text_name_and_unused_text_key(self):
        for words, says in ((["-o", self.path("out.txt")], "expected a name without .txt"),
                            (["-o", self.path("out.bin"), "--text-key", "body"], "--text-key: got body, but no input has records")):
            answer = run("data", "prepare", self.path("text.txt"), *words)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn(says, answer.stderr)

    def test_rejects_unwritable_output_before_work(self):
        os.mkdir(self.path("folder"))
        for words in (["data", "prepare", self.path("text.txt")], ["tokenizer", "train", self.path("text.txt"), "--vocab", "300"]):
            for output, code, says in (("folder", 4, "a folder; expected a file"), ("no/where", 4, "cannot be written"), ("", 2, "empty path")):
                answer = run(*words, "-o", self.path(output) if output else "")
                self.assertEqual(answer.returncode, code, answer.stderr)
                self.assertIn("--output", answer.stderr)
                self.assertIn(says, answer.stderr)


class DataKeys(TempFolderTestCase):
    """Rejects data keys that are not read, and values that leave no data."""

    def assert_rejected(self, says, *settings, ranks="1"):
        words = [word for one in settings for word in ("--set", one)]
        answer = self.train(*words, "--nproc", ranks, code=2)
        self.assertIn(says, answer.stderr)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_rejects_too_small_validation_split(self):
        for ranks in ("1", "2"):
            self.assert_rejected("data.val_fraction = 1e-05: holds out 0 of 18000 tokens; expected at least 2",
                                 "data.val_fraction=0.00001", ranks=ranks)

    def test_rejects_data_keys_without_matching_files(self):
        for ranks in ("1", "2"):
            self.assert_rejected("data.bin_type = u32: used only for raw .bin files", "data.bin_type=u32", ranks=ranks)
            self.assert_rejected("data.text_key = body: used only for records", "data.text_key=body", ranks=ranks)
        self.assert_rejected("data.val_fraction = 0.1: used only with data.val = []", "data.val=" + self.path("text.txt"))
        self.assert_rejected("train.eval_every = 2: used only with data.val != [] or data.val_fraction != 0.0", "data.val_fraction=0",
                             "train.eval_every=2")
        self.assert_rejected("model.embedding_norm = false: used only with model.arch = bert", "model.embedding_norm=false")
        self.assert_rejected("model.zero_positions = true: used only with model.positions = learned", "model.arch=llama",
                             "model.zero_positions=true")

    def test_rejects_records_without_text(self):
        with open(self.path("empty.csv"), "w") as file:
            file.write("id,text\n" + "1,\n" * 50)
        answer = self.train("--set", "data.train=" + self.path("empty.csv"), code=4)
        self.assertIn("empty.csv: got 50 documents without text", answer.stderr)
        answer = run("data", "prepare", self.path("empty.csv"), "-o", self.path("o.bin"))
        self.assertEqual(answer.returncode, 4, answer.stdout)
        self.assertIn("no text in", answer.stderr)

    def test_warns_when_validation_text_is_a_copy(self):
        shutil.copy(self.path("text.txt"), self.path("copy.txt"))
        answer = self.train("--set", "data.val=" + self.path("copy.txt"), "--set", "data.val_fraction=0", steps=1)
        self.assertEqual(answer.stderr.count("data.val: 1 of its 1 files are in data.train too"), 1, answer.stderr)


class Records(TempFolderTestCase):
    def test_tables_and_json_arrays_give_same_data_as_jsonl(self):
        texts = ["one, two", 'a "quoted" word', "lines\nof\ntext", "déjà vu"]
        with open(self.path("a.jsonl"), "w") as file:
            file.writelines(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts))
        with open(self.path("a.json"), "w") as file:
            json.dump([{"id": i, "text": text} for i, text in enumerate(texts)], file, indent=2)
        shutil.copy(self.path("a.jsonl"), self.path("lines.json"))
        import csv
        for name, dialect in (("a.csv", "excel"), ("a.tsv", "excel-tab")):
            with open(self.path(name), "w", newline="") as file:
                writer = csv.writer(file, dialect)
                writer.writerow(["id", "text"])
                writer.writerows(enumerate(texts))
        tokens = {}
        for name in ("a.jsonl", "a.json", "lines.json", "a.csv", "a.tsv"):
            answer = run("data", "prepare", self.path(name), "-o", self.path(name + ".bin"))
            self.assertEqual(answer.returncode, 0, answer.stderr)
            with open(self.path(name + ".bin"), "rb") as file:
                tokens[name] = file.read()
        self.assertEqual(len(set(tokens.values())), 1)
        self.assertEqual(len(tokens["a.csv"]), 2 * sum(len(text.encode()) + 1 for text in texts))
        answer = run("data", "prepare", self.path("a.csv"), "-o", self.path("o"), "--text-key", "body")
        self.assertIn('has no column "body"; its columns are: id, text', answer.stderr)

    def test_reads_class_labels_from_table(self):
        with open(self.path("items.csv"), "w") as file:
            file.write("label,text\n" + "".join(f"{i % 2},{'good' if i % 2 else 'bad'} film {i}\n" for i in range(64)))
        answer = self.train("--set", f"data.train={self.path('items.csv')}", "--set", "model.arch=bert", "--set",
                            "data.objective=classification", "--set", "data.val_fraction=0", steps=2)
        self.assertEqual(answer.returncode, 0, answer.stderr)


class ClassLabels(TempFolderTestCase):
    """Class labels have the same ids in training and validation and match the model."""

    def write(self, name, labels):
        with open(self.path(name), "w") as file:
            file.writelines(json.dumps({"text": f"{label} film {i}", "label": label}) + "\n" for i, label in enumerate(labels))
        return self.path(name)

    def classify(self, train, val, *settings, code=0, steps=30):
        words = ["model.arch=bert", "data.objective=classification", "data.val_fraction=0", "data.train=" + train,
                 *(["data.val=" + val] if val else []), *settings]
        return self.train("--resume", "none", *(word for one in words for word in ("--set", one)), code=code, steps=steps)

    def test_validation_labels_use_training_numbering(self):
        three = self.write("three.jsonl", ["bad", "fair", "good"] * 40)
        losses = []
        for name, labels in (("all", ["bad", "fair", "good"] * 8), ("two", ["good", "bad"] * 12)):
            self.classify(three, self.write(name + ".jsonl", labels))
            with open(self.path("run/summary.json")) as file:
                losses.append(json.load(file)["val_loss"])
        self.assertLess(losses[0], 0.7)
        self.assertLess(losses[1], 0.7)  # "good" keeps its training id although it is second in the validation file

    def test_rejects_labels_that_do_not_match_model(self):
        words, numbers = self.write("words.jsonl", ["bad", "good"] * 32), self.write("numbers.jsonl", [0, 1, 2] * 24)
        for train, val, settings, says in (
                (numbers, None, ["model.classes=2"], "model.classes = 2: data.train has labels of 3 classes"),
                (self.write("one.jsonl", ["good"] * 64), None, [], 'data.train: got one class in "label"; expected at least 2'),
                (words, numbers, [], "data.val: got labels that are numbers; the labels of data.train are words"),
                (words, self.write("other.jsonl", ["bad", "awful"] * 9), [], 'data.val: got the label "awful"'),
                (numbers, self.write("more.jsonl", [0, 7] * 9), [], "data.val: got the label 7; expected 0 to 2")):
            self.assertIn(says, self.classify(train, val, *settings, code=2, steps=2).stderr)


class Evaluation(TempFolderTestCase):
    def evaluate(self, checkpoint, *arguments):
        answer = run("eval", "--checkpoint", checkpoint, *arguments, "--json", "-")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout[answer.stdout.index("{"):])

    def test_evaluates_each_id_line_as_one_sequence(self):
        self.train(steps=20)
        lines = ["116 104 101 32 113 117", "32 100 111", "   ", "\t98 114 111 119 110 " + "32 102 111 120 " * 20]
        alone = []
        for line in lines:
            if line.strip():
                with open(self.path("row"), "w") as file:
                    file.write(line)
                alone.append(self.evaluate(self.path("run"), "--ids", self.path("row")))
        with open(self.path("rows"), "w") as file:
            file.write("\n".join(lines) + "\r\n\n")
        together = self.evaluate(self.path("run"), "--ids", self.path("rows"))
        self.assertEqual(together["token_losses"], [loss for row in alone for loss in row["token_losses"]])
        self.assertEqual(together["rows"], [row["rows"][0] for row in alone])
        self.assertEqual([row["tokens"] for row in together["rows"]], [5, 2, 84])
        self.assertAlmostEqual(together["loss"], sum(together["token_losses"]) / 91, places=12)
        for text, says in (("1 2\n3\n", "line 2: got 1 token"), ("1 2\n3 x7\n", 'line 2: got "x7"'), ("\n", "got no token ids"),
                           ("1 2 99999999999", 'line 1: got "99999999999"'), ("[1, 2]", 'line 1: got "[1,"')):
            with open(self.path("rows"), "w") as file:
                file.write(text)
            answer = run("eval", "--checkpoint", self.path("run"), "--ids", self.path("rows"))
            self.assertEqual(answer.returncode, 4, answer.stdout)
            self.assertIn(says, answer.stderr)

    def test_evaluates_each_record_as_one_text(self):
        self.train(steps=20)
        texts = ["the quick brown fox", "jumps over the lazy dog. " * 4]
        alone = []
        for text in texts:
            with open(self.path("one.txt"), "w") as file:
                file.write(text)
            alone += self.evaluate(self.path("run"), "--text", self.path("one.txt"))["token_losses"]
        with open(self.path("a.jsonl"), "w") as file:
            file.writelines(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts))
        with open(self.path("a.json"), "w") as file:
            json.dump([{"text": text} for text in texts], file, indent=1)
        with open(self.path("a.csv"), "w") as file:
            file.write("text\n" + "".join(f"{text}\n" for text in texts))
        for name in ("a.jsonl", "a.json", "a.csv"):
            result = self.evaluate(self.path("run"), "--text", self.path(name))
            self.assertEqual(result["token_losses"], alone, name)
            self.assertEqual(len(result["rows"]), 2)
        with open(self.path("a.jsonl"), "w") as file:
            file.write('{"body": "x"}\n')
        answer = run("eval", "--checkpoint", self.path("run"), "--text", self.path("a.jsonl"))
        self.assertEqual(answer.returncode, 4, answer.stdout)
        self.assertIn('a.jsonl, line 1 has no "text"; its keys are: body', answer.stderr)

    def test_adds_special_tokens_of_post_processor(self):
        answer = run("tokenizer", "train", self.path("text.txt"), "--vocab", "300", "-o", self.path("tokenizer.json"),
                     "--special", "<s>", "</s>")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.train("--set", f"data.tokenizer={self.path('tokenizer.json')}", steps=20)
        subprocess.run([ESPALIER, "convert", self.path("run"), self.path("hf")], check=True, capture_output=True)
        plain = self.evaluate(self.path("hf"), "--text", self.path("text.txt"))
        with_bos = run("generate", "--checkpoint", self.path("hf"), "--prompt", "<s>the", "--temperature", "0", "--tokens", "30").stdout
        without = run("generate", "--checkpoint", self.path("hf"), "--prompt", "the", "--temperature", "0", "--tokens", "30").stdout
        with open(self.path("hf/tokenizer.json")) as file:
            parts = json.load(file)
        parts["post_processor"] = {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
            {"type": "TemplateProcessing", "pair": [],
             "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
             "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}]}
        with open(self.path("hf/tokenizer.json"), "w") as file:
            json.dump(parts, file)
        ids = run("tokenizer", "encode", "-t", self.path("hf"), self.path("text.txt")).stdout.split()
        with open(self.path("ids"), "w") as file:
            file.write(" ".join(["0"] + ids))
        begun = self.evaluate(self.path("hf"), "--text", self.path("text.txt"))
        self.assertEqual(begun["token_losses"], self.evaluate(self.path("hf"), "--ids", self.path("ids"))["token_losses"])
        self.assertEqual(begun["tokens"], plain["tokens"] + 1)
        answer = run("generate", "--checkpoint", self.path("hf"), "--prompt", "the", "--temperature", "0", "--tokens", "30")
        self.assertEqual("<s>" + answer.stdout, with_bos)
        # The folder's tokenizer_config.json overrides this and adds EOS.
        with open(self.path("hf/tokenizer_config.json"), "w") as file:
            json.dump({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "add_eos_token": True}, file)
        with open(self.path("ids"), "w") as file:
            file.write(" ".join(ids + ["1"]))
        ended = self.evaluate(self.path("hf"), "--text", self.path("text.txt"))
        self.assertEqual(ended["token_losses"], self.evaluate(self.path("hf"), "--ids", self.path("ids"))["token_losses"])
        parts["post_processor"] = {"type": "WordLevelProcessing"}
        with open(self.path("hf/tokenizer.json"), "w") as file:
            json.dump(parts, file)
        answer = run("generate", "--checkpoint", self.path("hf"), "--prompt", "the")
        self.assertEqual(answer.returncode, 4, answer.stderr)
        self.assertIn('post_processor: got "WordLevelProcessing"; expected TemplateProcessing', answer.stderr)
        self.assertTrue(without.startswith("the"))


if __name__ == "__main__":
    unittest.main()
