"""Tests espalier data: file formats of other programs, interrupted preparation, bounded memory, errors.

The reference readers and writers here implement the published layouts with struct, without Espalier's code."""
import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

from cli_runner import ESPALIER, run, start, wait_until

EOS = 256
TEXTS = ["one", "", "zwölf", "a\nb " * 40]


def llmc_shard(tokens, wide=False):
    magic, version, code = (20240801, 7, "I") if wide else (20240520, 1, "H")
    return struct.pack("<256i", magic, version, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}{code}", *tokens)


def megatron_pair(documents, code=8):
    letter, width = {1: ("B", 1), 4: ("i", 4), 5: ("q", 8), 8: ("H", 2)}[code]
    lengths = [len(d) for d in documents]
    pointers = [width * sum(lengths[:i]) for i in range(len(documents))]
    idx = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(documents) + 1)
    idx += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(pointers)}q", *pointers)
    idx += struct.pack(f"<{len(documents) + 1}q", *range(len(documents) + 1))
    flat = [token for d in documents for token in d]
    return idx, struct.pack(f"<{len(flat)}{letter}", *flat)


def byte_documents(texts):
    return [list(text.encode()) + [EOS] for text in texts]


class TempFolderTestCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="espalier-data-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def info(self, *arguments):
        answer = run("data", "info", *arguments, "--json", "-")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    def prepare(self, *arguments, **options):
        answer = run("data", "prepare", *arguments, **options)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return answer

    def jsonl(self, name="in.jsonl", texts=TEXTS):
        return self.write(name, "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts))


class Formats(TempFolderTestCase):
    def test_reads_llmc_shards_of_both_widths(self):
        narrow = self.write("a.bin", llmc_shard([1, 50256, 7]))
        wide = self.write("b.bin", llmc_shard([1, 199999], wide=True))
        rows = self.info(narrow, wide)
        self.assertEqual([(r["format"], r["type"], r["tokens"], r["max_id"]) for r in rows],
                         [("llmc", "uint16", 3, 50256), ("llmc", "uint32", 2, 199999)])

    def test_reads_megatron_pairs_of_every_integer_type(self):
        for code, name in [(1, "uint8"), (4, "int32"), (5, "int64"), (8, "uint16")]:
            idx, bin_ = megatron_pair([[1, 2, 3], [], [100]], code)
            self.write("m.idx", idx)
            self.write("m.bin", bin_)
            for spelt in ["m", "m.idx", "m.bin"]:
                row, = self.info(self.path(spelt))
                self.assertEqual((row["format"], row["type"], row["tokens"], row["documents"], row["max_id"]),
                                 ("megatron", name, 4, 3, 100))

    def test_reads_raw_files(self):
        narrow = self.write("a.bin", struct.pack("<3H", 1, 2, 65535))
        row, = self.info(narrow)
        self.assertEqual((row["format"], row["type"], row["tokens"], row["max_id"]), ("bin", "uint16", 3, 65535))
        wide = self.write("b.bin", struct.pack("<2I", 1, 100000))
        row, = self.info(wide, "--type", "uint32")
        self.assertEqual((row["type"], row["tokens"], row["max_id"]), ("uint32", 2, 100000))

    def test_writes_documented_layouts(self):
        source = self.jsonl()
        documents = byte_documents(TEXTS)
        flat = [token for d in documents for token in d]
        self.prepare(source, "-o", self.path("raw.bin"))
        self.assertEqual(self.read("raw.bin"), struct.pack(f"<{len(flat)}H", *flat))
        self.prepare(source, "-o", self.path("wide.bin"), "--type", "uint32")
        self.assertEqual(self.read("wide.bin"), struct.pack(f"<{len(flat)}I", *flat))
        self.prepare(source, "-o", self.path("shard"), "--format", "llmc", "--shard-tokens", "100")
        self.assertEqual(self.read("shard_000000.bin"), llmc_shard(flat[:100]))
        self.assertEqual(self.read("shard_000001.bin"), llmc_shard(flat[100:]))
        for name, code in [("uint16", 8), ("int32", 4)]:
            self.prepare(source, "-o", self.path("pair"), "--format", "megatron", "--type", name)
            self.assertEqual((self.read("pair.idx"), self.read("pair.bin")), megatron_pair(documents, code))

    def test_output_records_token_width(self):
        self.prepare(self.jsonl(), "-o", self.path("wide.bin"), "--type", "uint32")
        row, = self.info(self.path("wide.bin"))
        self.assertEqual((row["type"], row["max_id"]), ("uint32", EOS))

    def test_compressed_and_plain_give_the_same_tokens(self):
        plain = self.jsonl()
        packed = self.write("in.jsonl.gz", gzip.compress(self.read("in.jsonl")))
        self.prepare(plain, "-o", self.path("a.bin"))
        self.prepare(packed, "-o", self.path("b.bin"))
        self.assertEqual(self.read("a.bin"), self.read("b.bin"))
        if shutil.which("zstd"):
            subprocess.run(["zstd", "-q", plain], check=True)
            self.prepare(plain + ".zst", "-o", self.path("c.bin"))
            self.assertEqual(self.read("a.bin"), self.read("c.bin"))

    def test_info_describes_text_and_prints_table(self):
        row, = self.info(self.jsonl())
        self.assertEqual((row["format"], row["documents"]), ("jsonl", len(TEXTS)))
        answer = run("data", "info", self.path("in.jsonl"))
        self.assertRegex(answer.stdout, r"path +format +type +bytes +tokens +documents +largest id")

    def test_second_preparation_writes_nothing(self):
        source = self.jsonl()
        first = self.prepare(source, "-o", self.path("a.bin"), "--json", self.path("a.report"))
        before = os.stat(self.path("a.bin")).st_mtime_ns
        second = self.prepare(source, "-o", self.path("a.bin"))
        self.assertIn("wrote", first.stdout)
        self.assertIn("already there", second.stdout)
        self.assertEqual(os.stat(self.path("a.bin")).st_mtime_ns, before)
        self.assertEqual(json.loads(self.read("a.report"))["documents"], len(TEXTS))


class Resume(TempFolderTestCase):
    def test_resumes_to_same_bytes_after_kill(self):
        line = json.dumps({"text": "the quick brown fox jumps over the lazy dog " * 20}) + "\n"
        source = self.write("in.jsonl", "".join(line.replace("fox", f"fox{i}", 1) for i in range(40000)))
        for form, names in [("bin", ["NAME"]), ("megatron", ["NAME.bin", "NAME.idx"]),
                            ("llmc", [f"NAME_{i:06}.bin" for i in range(4)])]:
            options = ["--format", form, "--threads", "1", "--checkpoint-mib", "1",
                       *(["--shard-tokens", "10000000"] if form == "llmc" else [])]
            self.prepare(source, "-o", self.path("whole"), *options)
            progress = self.path("cut.progress.json")
            killed = 0
            for wanted in range(3):  # each attempt gets further before it is killed
                process = start("data", "prepare", source, "-o", self.path("cut"), *options)
                seen = set()

                def recorded():
                    try:
                        seen.add(os.stat(progress).st_mtime_ns)
                    except FileNotFoundError:
                        pass
                    return len(seen) > 2 + wanted or process.poll() is not None
                wait_until(recorded)
                process.send_signal(signal.SIGKILL)
                process.communicate(timeout=30)
                killed += process.returncode == -signal.SIGKILL
                self.assertFalse(os.path.exists(self.path(names[0].replace("NAME", "cut"))) and process.returncode != 0)
            self.assertGreaterEqual(killed, 1)
            self.assertTrue(os.path.exists(progress))
            self.prepare(source, "-o", self.path("cut"), *options)
            for name in names:
                self.assertEqual(self.read(name.replace("NAME", "cut")), self.read(name.replace("NAME", "whole")), name)
            left = [n for n in os.listdir(self.folder) if n.endswith((".partial", ".progress.json", ".lock"))]
            self.assertEqual(left, [])
            for name in os.listdir(self.folder):
                if name != "in.jsonl":
                    os.remove(self.path(name))


class Memory(TempFolderTestCase):
    def test_memory_is_bounded_for_any_text_size(self):
        line = json.dumps({"text": "abcdefgh " * 1000}) + "\n"
        source = self.path("in.jsonl.gz")
        with gzip.open(source, "wb", compresslevel=1) as file:
            for _ in range(140):
                file.write(line.encode() * 100)  # 126 MB
        command = [ESPALIER, "data", "prepare", source, "-o", self.path("out.bin"), "--threads", "2"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(os.path.getsize(self.path("out.bin")), 2 * 14000 * 9001)
        self.assertLess(used.ru_maxrss, 200 << 10)  # KiB; the tokens alone are 252 MB


class Errors(TempFolderTestCase):
    def refuse(self, code, text, *arguments):
        answer = run("data", *arguments)
        self.assertEqual(answer.returncode, code, answer.stderr)
        self.assertIn(text, answer.stderr)
        self.assertEqual(len(answer.stderr.strip().splitlines()), 1, answer.stderr)

    def test_rejects_inconsistent_files(self):
        shard = llmc_shard([1, 2, 3])
        self.refuse(4, "1030 bytes; the file has 1029", "info", self.write("a.bin", shard[:-1]))
        idx, bin_ = megatron_pair([[1, 2, 3]])
        self.write("m.bin", bin_[:-2])
        self.refuse(4, "outside the .bin of 4 bytes", "info", self.write("m.idx", idx))
        self.refuse(4, "not a whole number of uint16 tokens", "info", self.write("r.bin", b"abc"))

    def test_rejects_truncated_file_or_other_tokenizer(self):
        self.prepare(self.jsonl(), "-o", self.path("d.bin"))
        whole = self.read("d.bin")
        self.write("d.bin", whole[:100])
        self.refuse(4, f"has 100 bytes, but {self.path('d.bin.json')} says", "info", self.path("d.bin"))
        self.write("d.bin", whole)
        run("tokenizer", "train", self.jsonl(), "-o", self.path("tok.json"), "--vocab", "300")
        run_file = self.write("run.toml", f"[model]\nseq_len = 16\n[data]\ntrain = [\"{self.path('d.bin')}\"]\n"
                              f"tokenizer = \"{self.path('tok.json')}\"\n")
        answer = run("train", run_file, "--run-dir", self.path("run"))
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("was made with another tokenizer, byte of 257 ids", answer.stderr)

    def test_rejects_empty_input(self):
        self.refuse(4, "no text in", "prepare", self.write("empty.txt", ""), "-o", self.path("o.bin"))
        self.refuse(2, "--threads", "prepare", self.jsonl(), "-o", self.path("o.bin"), "--threads", "-1")
        self.assertEqual(sorted(os.listdir(self.folder)), ["empty.txt", "in.jsonl"])

    def test_rejects_lines_that_are_not_json(self):
        source = self.write("a.jsonl", '{"text": "a"}\n{"text": \n')
        self.refuse(4, "a.jsonl, line 2: invalid JSON at column", "prepare", source, "-o", self.path("o.bin"))
        source = self.write("b.jsonl", '{"txet": "a"}\n')
        self.refuse(4, 'b.jsonl, line 1 has no "text"; its keys are: txet', "prepare", source, "-o", self.path("o.bin"))
        source = self.write("c.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 1000)[:-9])
        self.refuse(4, "c.jsonl.gz: it is not complete", "prepare", source, "-o", self.path("o.bin"))
        self.assertEqual([name for name in os.listdir(self.folder) if name.startswith("o.bin")], [])

    def test_rejects_invalid_option_values(self):
        source = self.jsonl()
        self.refuse(2, "unknown token format", "prepare", source, "-o", self.path("o"), "--format", "arrow")
        self.refuse(2, "llm.c shards store uint16 or uint32", "prepare", source, "-o", self.path("o"), "--format", "llmc",
                    "--type", "int32")
        self.refuse(4, "nowhere", "prepare", self.path("nowhere.txt"), "-o", self.path("o"))
        self.prepare(source, "-o", self.path("t.bin"))
        self.refuse(2, "got a file of tokens", "prepare", self.path("t.bin"), "-o", self.path("o"))


if __name__ == "__main__":
    unittest.main()
