"""Compares token ids with the reference packages `tokenizers`, `tiktoken` and `sentencepiece`. ESPALIER_TEST_LONG=1
runs a million texts per vocabulary. A test is skipped with a message if a package or a real vocabulary is missing."""
import base64
import importlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import corpus

ESPALIER = os.environ.get("ESPALIER", "build/bin/espalier")
LONG = os.environ.get("ESPALIER_TEST_LONG") == "1"
MANY = 1_000_000 if LONG else 50_000
SOME = 200_000 if LONG else 20_000
BATCH = 50_000
LIMIT_S = 600

FEW_LETTERS = ("prose", "code", "edge_cases")  # few distinct characters: vocabularies stay small
SUFFIXES = "'s|'t|'re|'ve|'m|'ll|'d"
LLAMA3 = (r"(?i:" + SUFFIXES + r")|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+(?i:" + SUFFIXES + ")?",
                  r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*(?i:" + SUFFIXES + ")?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def package(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise unittest.SkipTest(f"the Python package {name} is not installed (tools/install_packages test)")


def shared(name):
    path = corpus.SHARED / name
    if not path.exists():
        raise unittest.SkipTest(f"{path} is missing")
    return path


def espalier_ids(tokenizer, texts, *options):
    """Ids of each text from the espalier binary."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"".join(text.encode() + b"\0" for text in texts))
        file.flush()
        answer = subprocess.run([ESPALIER, "tokenizer", "encode", "-t", str(tokenizer), "-0", *options, file.name],
                                capture_output=True, timeout=LIMIT_S)
    if answer.returncode != 0:
        raise AssertionError(f"exit {answer.returncode}: {answer.stderr.decode()}")
    return [list(map(int, line.split())) for line in answer.stdout.decode().split("\n")[:-1]]


def decoded(tokenizer, ids):
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("".join(" ".join(map(str, row)) + "\n" for row in ids))
        file.flush()
        answer = subprocess.run([ESPALIER, "tokenizer", "decode", "-t", str(tokenizer), "-0", file.name],
                                capture_output=True, timeout=LIMIT_S, check=True)
    return answer.stdout.decode().split("\0")[:-1]


class OracleTestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def compare(self, tokenizer, reference, texts, *options, round_trip=False):
        """Compares the ids of both programs. `reference` maps a list of texts to a list of id lists."""
        compared = 0
        source = iter(texts)
        while batch := list(itertools.islice(source, BATCH)):
            mine, other = espalier_ids(tokenizer, batch, *options), reference(batch)
            self.assertEqual(len(mine), len(batch))
            for text, a, b in zip(batch, mine, other):
                self.assertEqual(a, list(b), f"after {compared} equal texts: {text!r}")
                compared += 1
            if round_trip:
                self.assertEqual(decoded(tokenizer, mine), batch)
        self.assertGreater(compared, 0)

    def hugging_face(self, tokenizer):
        return lambda texts: [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def gpt2(self, pattern=None):
        """GPT-2's vocabulary in `tokenizers`, optionally with another split pattern."""
        tokenizers = package("tokenizers")
        folder = shared("gpt2")
        model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        tokenizer = tokenizers.Tokenizer(model)
        pre = tokenizers.pre_tokenizers
        if pattern is None:
            tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        else:
            tokenizer.pre_tokenizer = pre.Sequence([
                pre.Split(tokenizers.Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
        tokenizer.decoder = tokenizers.decoders.ByteLevel()
        tokenizer.add_special_tokens(["<|endoftext|>"])
        return tokenizer

    def o200k(self, pattern=O200K):
        tiktoken = package("tiktoken")
        ranks = {}
        for line in shared("o200k_base.tiktoken").read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        return tiktoken.Encoding(name="o200k", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 199999})


class Gpt2(OracleTestCase):
    def test_gpt2_files_match_hugging_face_tokenizers(self):
        self.compare(shared("gpt2"), self.hugging_face(self.gpt2()), corpus.texts(MANY), round_trip=True)

    def test_special_tokens_in_text_match_hugging_face_tokenizers(self):
        texts = [text[:n] + "<|endoftext|>" * (n % 3) + text[n:] for n, text in enumerate(corpus.texts(2000, seed=2))]
        self.compare(shared("gpt2"), self.hugging_face(self.gpt2()), texts)


class Tiktoken(OracleTestCase):
    def test_o200k_equals_tiktoken(self):
        encoding = self.o200k()
        self.compare(shared("o200k_base.tiktoken"), lambda t: encoding.encode_ordinary_batch(t, num_threads=2),
                     corpus.texts(MANY, seed=3), "--ordinary", round_trip=True)

    def test_other_patterns_equal_tiktoken(self):
        for name, pattern in (("cl100k", CL100K), ("llama3", LLAMA3), ("qwen2", QWEN2)):
            with self.subTest(name):
                encoding = self.o200k(pattern)
                self.compare(shared("o200k_base.tiktoken"), lambda t: encoding.encode_ordinary_batch(t, num_threads=2),
                             corpus.texts(SOME, seed=4), "--ordinary", "--pattern", name)


class TokenizerJson(OracleTestCase):
    def test_split_patterns_match_hugging_face_tokenizers(self):
        for name, pattern in (("gpt2", None), ("llama3", LLAMA3), ("qwen2", QWEN2), ("o200k", O200K)):
            with self.subTest(name):
                tokenizer = self.gpt2(pattern)
                path = self.folder / f"{name}.json"
                tokenizer.save(str(path))
                self.compare(path, self.hugging_face(tokenizer), corpus.texts(SOME, seed=5), round_trip=True)

    def test_ignore_merges_and_prefix_space_match_hugging_face_tokenizers(self):
        tokenizer = self.gpt2(LLAMA3)
        tokenizer.save(str(self.folder / "a.json"))
        parts = json.loads((self.folder / "a.json").read_text())
        parts["model"]["ignore_merges"] = True
        parts["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = False
        path = self.folder / "tokenizer.json"
        path.write_text(json.dumps(parts))
        self.compare(path, self.hugging_face(package("tokenizers").Tokenizer.from_file(str(path))),
                     corpus.texts(SOME, seed=6))
        plain = self.gpt2()
        plain.pre_tokenizer = package("tokenizers").pre_tokenizers.ByteLevel(add_prefix_space=True)
        plain.save(str(path))
        self.compare(path, self.hugging_face(plain), corpus.texts(SOME, seed=7))

    def test_added_tokens_match_hugging_face_tokenizers(self):
        tokenizers = package("tokenizers")
        tokenizer = self.gpt2()
        tokenizer.add_tokens([tokenizers.AddedToken("[left]", lstrip=True), tokenizers.AddedToken("[right]", rstrip=True),
                              tokenizers.AddedToken("alone", single_word=True), tokenizers.AddedToken("[lefty]"),
                              tokenizers.AddedToken("plain", normalized=False)])
        path = self.folder / "tokenizer.json"
        tokenizer.save(str(path))
        parts = ["[left]", "[right]", "alone", "[lefty]", "plain", " ", "  ", "\n", "x", "9", "_", "\u00e9", "<|endoftext|>", "."]
        texts = ["".join(parts[(n * 7 + k * (n % 11 + 1) + k * k) % len(parts)] for k in range(n % 9 + 1)) for n in range(3000)]
        self.compare(path, self.hugging_face(tokenizer), texts)


class SavedTokenizers(OracleTestCase):
    """`tokenizers` reads the files that espalier saves."""

    def test_hugging_face_tokenizers_read_trained_vocabulary(self):
        tokenizers = package("tokenizers")
        text = self.folder / "text"
        text.write_text("".join(corpus.texts(20_000, seed=8)), encoding="utf-8", newline="")
        for name, pattern in (("gpt2", None), ("llama3", LLAMA3), ("cl100k", None), ("o200k", O200K)):
            with self.subTest(name):
                path = self.folder / f"{name}.json"
                subprocess.run([ESPALIER, "tokenizer", "train", str(text), "--vocab", "3000", "-o", str(path), "--pattern", name,
                                "--threads", "2"], check=True, capture_output=True, timeout=LIMIT_S)
                reference = tokenizers.Tokenizer.from_file(str(path))
                self.assertEqual(reference.get_vocab_size(), 3000)
                self.compare(path, self.hugging_face(reference), corpus.texts(SOME, seed=9), round_trip=True)

    def test_training_finds_merges_of_hugging_face_tokenizers(self):
        tokenizers = package("tokenizers")
        text = "".join(corpus.texts(5_000, seed=10))
        (self.folder / "text").write_text(text, encoding="utf-8", newline="")
        reference = tokenizers.Tokenizer(tokenizers.models.BPE())
        pre = tokenizers.pre_tokenizers
        reference.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=2500, min_frequency=2, show_progress=False,
                                                 special_tokens=["<|endoftext|>"], initial_alphabet=pre.ByteLevel.alphabet())
        reference.train_from_iterator([text], trainer)
        for threads in ("1", "2", "3"):
            path = self.folder / "ours.json"
            subprocess.run([ESPALIER, "tokenizer", "train", str(self.folder / "text"), "--vocab", "2500", "-o", str(path),
                            "--threads", threads], check=True, capture_output=True, timeout=LIMIT_S)
            mine = json.loads(path.read_text())["model"]
            other = json.loads(reference.to_str())["model"]
            self.assertEqual(mine["merges"], [list(m) if not isinstance(m, str) else m.split(" ") for m in other["merges"]])
            self.assertEqual(mine["vocab"], other["vocab"])


class Bert(OracleTestCase):
    def tokenizer(self, lower):
        """A WordPiece vocabulary, trained with `tokenizers`."""
        tokenizers = package("tokenizers")
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = tokenizers.decoders.WordPiece()
        trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=6000, show_progress=False, limit_alphabet=3000,
                                                       special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
        tokenizer.train_from_iterator(corpus.texts(20_000, seed=11), trainer)
        return tokenizer

    def test_tokenizer_json_and_vocab_txt_match_hugging_face_tokenizers(self):
        for lower in (True, False):
            with self.subTest(lower=lower):
                tokenizer = self.tokenizer(lower)
                path = self.folder / "tokenizer.json"
                tokenizer.save(str(path))
                texts = list(corpus.texts(SOME, seed=12)) + ["a [MASK] b[SEP]", "x" * 100, "x" * 101]
                self.compare(path, self.hugging_face(tokenizer), texts)
                names = sorted(tokenizer.get_vocab().items(), key=lambda row: row[1])
                folder = self.folder / f"vocab-{lower}"
                folder.mkdir()
                (folder / "vocab.txt").write_text("".join(name + "\n" for name, _ in names), encoding="utf-8", newline="")
                (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
                self.compare(folder, self.hugging_face(tokenizer), texts[:SOME // 4] + texts[-3:])

    def test_every_character_matches_hugging_face_tokenizers(self):
        tokenizers = package("tokenizers")
        points = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
        # The vocabulary contains the normalized form of every character, so a difference shows in the ids.
        for options in ({"lowercase": True}, {"lowercase": False}, {"lowercase": False, "strip_accents": True},
                        {"lowercase": True, "strip_accents": False, "handle_chinese_chars": False},
                        {"lowercase": False, "clean_text": False}):
            normalizer = tokenizers.normalizers.BertNormalizer(**options)
            words = {"[UNK]": 0}
            for text in map(chr, points):
                for word, _ in tokenizers.pre_tokenizers.BertPreTokenizer().pre_tokenize_str(normalizer.normalize_str("a" + text + "b")):
                    words.setdefault(word, len(words))
            tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
            tokenizer.normalizer = normalizer
            tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
            path = self.folder / "tokenizer.json"
            tokenizer.save(str(path))
            with self.subTest(**options):
                self.compare(path, self.hugging_face(tokenizer), ["a" + chr(c) + "b" for c in points])
            if not LONG:
                break


class PostProcessors(OracleTestCase):
    """--add-special-tokens adds the same ids around a text as `tokenizers`."""

    def compare_with_template(self, tokenizer):
        path = self.folder / "tokenizer.json"
        tokenizer.save(str(path))
        reference = package("tokenizers").Tokenizer.from_file(str(path))
        self.compare(path, lambda texts: [e.ids for e in reference.encode_batch(texts, add_special_tokens=True)],
                     list(corpus.texts(300, seed=19)) + ["", "<s>", "x"], "--add-special-tokens")
        return path

    def test_every_post_processor_matches_hugging_face_tokenizers(self):
        tokenizers = package("tokenizers")
        processors = tokenizers.processors

        def template(single, *names):
            return processors.TemplateProcessing(single=single, pair=None, special_tokens=[(n, tokenizer.token_to_id(n)) for n in names])
        tokenizer = self.gpt2()
        tokenizer.add_special_tokens(["<s>", "</s>", "[CLS]", "[SEP]"])
        cls, sep, bos, eos = (((n, tokenizer.token_to_id(n))) for n in ("[CLS]", "[SEP]", "<s>", "</s>"))
        level = processors.ByteLevel(trim_offsets=False)
        for name, processor in {
                "none": None, "ByteLevel": level, "RobertaProcessing": processors.RobertaProcessing(eos, bos, add_prefix_space=False),
                "BertProcessing": processors.BertProcessing(sep, cls), "BOS": template("<s> $A", "<s>"), "EOS": template("$A </s>", "</s>"),
                "several": template("<s> [CLS] $A [SEP] </s>", "<s>", "[CLS]", "[SEP]", "</s>"), "nothing": template("$A"),
                "as LLaMA 3": processors.Sequence([level, template("<s> $A", "<s>")]),
                "in the middle": processors.Sequence([level, template("<s> $A </s>", "<s>", "</s>"), level]),
        }.items():
            with self.subTest(name):
                if processor is not None:
                    tokenizer.post_processor = processor
                self.compare_with_template(tokenizer)

    def test_other_models_match_hugging_face_tokenizers(self):
        tokenizers = package("tokenizers")
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<s>", "</s>"]
        model = tokenizers.models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]")
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        tokenizer.add_special_tokens(names)
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
        path = self.compare_with_template(tokenizer)
        # A bare vocab.txt uses BERT's template; the saved tokenizer.json contains it explicitly.
        (self.folder / "vocab.txt").write_text("".join(name + "\n" for name in names))
        path.unlink()
        self.assertEqual(espalier_ids(self.folder / "vocab.txt", ["x"], "--add-special-tokens"), [[2, 1, 3]])
        pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0), ("a", -3.0)]
        tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=2))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", pair=None, special_tokens=[("</s>", 1)])
        self.compare_with_template(tokenizer)


class SentencePiece(OracleTestCase):
    def model(self, **options):
        sentencepiece = package("sentencepiece")
        text = self.folder / "text"
        lines = [line for t in corpus.texts(12_000, 13, FEW_LETTERS) for line in t.splitlines() if line.strip() and len(line.encode()) < 4000]
        text.write_text("\n".join(lines), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(input=str(text), model_prefix=str(self.folder / "m"), minloglevel=2,
                                                 hard_vocab_limit=False, num_threads=2, **options)
        return self.folder / "m.model", sentencepiece.SentencePieceProcessor(model_file=str(self.folder / "m.model"))

    def compare_model(self, **options):
        path, reference = self.model(**options)
        self.compare(path, lambda texts: reference.encode(texts, num_threads=2), corpus.texts(SOME, seed=14))

    def test_llama_2_bpe_equals_sentencepiece(self):
        self.compare_model(model_type="bpe", vocab_size=4000, byte_fallback=True, normalization_rule_name="identity",
                           remove_extra_whitespaces=False, split_digits=True, allow_whitespace_only_pieces=True,
                           character_coverage=0.995)

    def test_bpe_with_special_symbols_equals_sentencepiece(self):
        self.compare_model(model_type="bpe", vocab_size=3000, normalization_rule_name="identity", character_coverage=0.98,
                           user_defined_symbols=["<sep>", "word"])

    def test_unigram_with_default_normalization_equals_sentencepiece(self):
        self.compare_model(model_type="unigram", vocab_size=4000, character_coverage=0.98)

    def test_unigram_with_bytes_equals_sentencepiece(self):
        self.compare_model(model_type="unigram", vocab_size=4000, byte_fallback=True, normalization_rule_name="identity",
                           character_coverage=0.98)


class PieceJson(OracleTestCase):
    """tokenizer.json files in the style of SentencePiece, where pieces contain the spaces."""

    def test_llama_2_json_with_byte_fallback_matches_hugging_face_tokenizers(self):
        tokenizers = package("tokenizers")
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        normalizers = tokenizers.normalizers
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
        names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=4000, show_progress=False, special_tokens=names, limit_alphabet=600)
        tokenizer.train_from_iterator(corpus.texts(10_000, seed=15), trainer)
        parts = json.loads(tokenizer.to_str())
        parts["added_tokens"] = parts["added_tokens"][:3]
        path = self.folder / "tokenizer.json"
        for legacy in (True, False):
            with self.subTest(legacy=legacy):
                if legacy:
                    parts["normalizer"] = json.loads(normalizers.Sequence([
                        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]).__getstate__())
                    parts["pre_tokenizer"] = None
                else:
                    parts["normalizer"] = None
                    parts["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
                path.write_text(json.dumps(parts))
                reference = tokenizers.Tokenizer.from_file(str(path))
                texts = list(corpus.texts(SOME, seed=16)) + ["a<s>b</s> c", "<s>", " <s> x"]
                self.compare(path, self.hugging_face(reference), texts)

    def test_unigram_json_matches_hugging_face_tokenizers(self):
        tokenizers = package("tokenizers")
        tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
        tokenizer.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        trainer = tokenizers.trainers.UnigramTrainer(vocab_size=4000, show_progress=False, special_tokens=["<pad>", "<unk>"],
                                                     unk_token="<unk>")
        tokenizer.train_from_iterator([t for t in corpus.texts(10_000, 17, FEW_LETTERS) if len(t) < 2000], trainer)
        path = self.folder / "tokenizer.json"
        for split in (False, True):
            if split:
                tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
                    tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Metaspace()])
            tokenizer.save(str(path))
            with self.subTest(white_space_split=split):
                self.compare(path, self.hugging_face(tokenizer), corpus.texts(SOME, seed=18))


if __name__ == "__main__":
    if "-v" not in sys.argv:
        sys.argv.append("-v")
    unittest.main()
