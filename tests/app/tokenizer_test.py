"""Tests espalier tokenizer: train, encode, decode."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from cli_runner import ESPALIER, LIMIT_S, run

TEXT = "the cat sat on the mat; the cat's hat\n" * 50 + "d\u00e9j\u00e0 vu \u4e2d\u6587 12345\n" * 20


def piped(text, *arguments):
    return subprocess.run([ESPALIER, "tokenizer", *arguments], input=text, capture_output=True, timeout=LIMIT_S)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text"
        self.text.write_text(TEXT, encoding="utf-8")
        self.json = self.folder / "tokenizer.json"

    def train(self, *arguments):
        return run("tokenizer", "train", str(self.text), "--vocab", "280", "-o", str(self.json), *arguments)


class Train(Folder):
    def test_writes_tokenizer_json_of_requested_size(self):
        answer = self.train()
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(answer.stdout, "")
        parts = json.loads(self.json.read_text())
        self.assertEqual(len(parts["model"]["vocab"]), 280)
        self.assertEqual(len(parts["model"]["merges"]), 280 - 257)
        self.assertEqual(parts["added_tokens"][0]["content"], "<|endoftext|>")

    def test_vocabulary_depends_on_options_but_not_on_threads(self):
        results = []
        for arguments in (["--threads", "1"], ["--threads", "3"], ["--pattern", "llama3"], ["--special", "<a>", "<b>"]):
            self.assertEqual(self.train(*arguments).returncode, 0)
            results.append(self.json.read_text())
        self.assertEqual(results[0], results[1])
        self.assertEqual(len(set(results)), 3)
        self.assertEqual(json.loads(results[3])["model"]["vocab"]["<b>"], 1)

    def test_reports_too_little_text(self):
        answer = run("tokenizer", "train", str(self.text), "--vocab", "50000", "-o", str(self.json))
        self.assertEqual(answer.returncode, 0)
        self.assertIn("fewer than the requested 50000", answer.stderr)


class EncodeDecode(Folder):
    def test_text_round_trips(self):
        self.train()
        for tokenizer in ("byte", str(self.json), str(self.folder)):
            ids = piped(TEXT.encode(), "encode", "-t", tokenizer)
            self.assertEqual(ids.returncode, 0, ids.stderr)
            back = piped(ids.stdout, "decode", "-t", tokenizer)
            self.assertEqual(back.stdout.decode(), TEXT)

    def test_any_bytes_round_trip(self):
        self.train()
        noise = bytes((i * 131 + i * i * 7) % 256 for i in range(20000))
        for tokenizer in ("byte", str(self.json)):
            ids = piped(noise, "encode", "-t", tokenizer, "--ordinary")
            self.assertEqual(piped(ids.stdout, "decode", "-t", tokenizer).stdout, noise)

    def test_options_for_lines_records_counts_pieces_and_ids_work(self):
        self.assertEqual(piped(b"ab\nc\n", "encode", "-t", "byte", "--lines", "--ids").stdout, b"97 98\n99\n")
        self.assertEqual(piped(b"a\n\0\0c", "encode", "-t", "byte", "-0").stdout, b"97 10\n\n99\n")
        self.assertEqual(piped(b"ab", "encode", "-t", "byte", "--pieces").stdout, b"a|b\n")
        self.assertEqual(piped(b"abc", "encode", "-t", "byte", "--count").stdout,
                         b"3 tokens, 3 bytes, 1 texts, 1.000 bytes per token\n")
        self.assertEqual(run("tokenizer", "decode", "-t", "byte", "--ids", "104,105").stdout, "hi")
        self.assertEqual(piped(b"104\n105", "decode", "-t", "byte", "--lines").stdout, b"h\ni\n")

    def test_special_tokens_are_one_id_unless_ordinary(self):
        self.assertEqual(piped(b"a<|endoftext|>", "encode", "-t", "byte").stdout, b"97 256\n")
        self.assertEqual(len(piped(b"a<|endoftext|>", "encode", "-t", "byte", "--ordinary").stdout.split()), 14)


class Errors(Folder):
    def check(self, code, words, *arguments):
        answer = run("tokenizer", *arguments)
        self.assertEqual(answer.returncode, code, answer.stderr)
        for word in words:
            self.assertIn(word, answer.stderr)

    def test_errors_have_exit_code_and_reason(self):
        self.check(4, ["bytes", "byte"], "encode", "-t", "bytes", str(self.text))
        self.check(4, ["none.json"], "encode", "-t", str(self.folder / "none.json"), str(self.text))
        self.check(4, ["absent"], "encode", "-t", "byte", str(self.folder / "absent"))
        self.check(2, ["257"], "decode", "-t", "byte", "--ids", "300")
        self.check(2, ["x7"], "decode", "-t", "byte", "--ids", "1 x7")
        self.check(2, ["too small"], "train", str(self.text), "--vocab", "20", "-o", str(self.json))
        self.check(2, ["lama3", "llama3"], "train", str(self.text), "--vocab", "300", "-o", str(self.json), "--pattern", "lama3")
        for wrong, word in (('{"model":', "JSON"), ('{"model":{"type":"Magic"}}', "Magic"), ("{}", "model")):
            self.json.write_text(wrong)
            self.check(4, [word, "tokenizer.json"], "encode", "-t", str(self.json), str(self.text))


class Help(unittest.TestCase):
    def test_help_fits_screen_and_lists_patterns(self):
        for command in ([], ["train"], ["encode"], ["decode"]):
            answer = run("tokenizer", *command, "--help")
            self.assertEqual(answer.returncode, 0)
            self.assertLessEqual(max(map(len, answer.stdout.splitlines())), 120, command)
            self.assertLessEqual(len(answer.stdout.splitlines()), 50)
        self.assertIn("llama3", run("tokenizer", "train", "--help").stdout)
        self.assertIn("llama3", run("completion", "bash").stdout)


if __name__ == "__main__":
    unittest.main()
