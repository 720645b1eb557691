#!/usr/bin/env python3
"""Encoding speed per core compared with `tokenizers` and `tiktoken`: python3 bench/tokenizer/tokenizer_speed.py build/bin/tokenizer_bench

Every package encodes the same lines on one pinned core, one after the other, in rounds; the median counts. `tokenizers` runs
encode_batch_fast, its fastest call, `tiktoken` encode_ordinary. Only the numbers of ids are compared. Prints a Markdown table."""
import base64
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tokenizers"))
import corpus  # noqa: E402
from oracles_test import LLAMA3, O200K  # noqa: E402

ROUNDS = 5


def inputs():
    prose = "".join(corpus.prose())
    code = "".join(corpus.code())
    scripts = "".join(text.replace("\n", " ") + "\n" for text in corpus.texts(30_000, 1, ("scripts",)))
    return {"prose": prose, "code": code, "scripts": scripts}


def gpt2(pattern):
    import tokenizers
    folder = corpus.SHARED / "gpt2"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    pre = tokenizers.pre_tokenizers
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False) if pattern is None else pre.Sequence([
        pre.Split(tokenizers.Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    return tokenizer


def o200k():
    import tiktoken
    lines = (corpus.SHARED / "o200k_base.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
    return tiktoken.Encoding(name="o200k", pat_str=O200K, mergeable_ranks=ranks, special_tokens={})


def timed(encode, lines):
    begun = time.perf_counter()
    ids = encode(lines)
    return ids, time.perf_counter() - begun


def ours(program, tokenizer, pattern, path):
    answer = subprocess.run([program, str(tokenizer), pattern, "2", path], capture_output=True, text=True, check=True)
    _, ids, seconds = answer.stdout.splitlines()[-1].split()
    return int(ids), float(seconds)


def main(program):
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    folder = pathlib.Path(tempfile.mkdtemp())
    llama3 = gpt2(LLAMA3)
    llama3.save(str(folder / "llama3.json"))
    hugging_face = lambda tokenizer: lambda lines: sum(len(e.ids) for e in tokenizer.encode_batch_fast(lines, add_special_tokens=False))
    encoding = o200k()
    cases = [("GPT-2 vocabulary, gpt2 pattern", "tokenizers", corpus.SHARED / "gpt2", hugging_face(gpt2(None))),
             ("GPT-2 vocabulary, llama3 pattern", "tokenizers", folder / "llama3.json", hugging_face(llama3)),
             ("o200k", "tiktoken", corpus.SHARED / "o200k_base.tiktoken",
              lambda lines: sum(len(encoding.encode_ordinary(line)) for line in lines))]
    print("| vocabulary | text | espalier MB/s | package | package MB/s | speed-up |\n|---|---|---:|---|---:|---:|")
    for name, text in inputs().items():
        path = folder / name
        path.write_text(text, encoding="utf-8", newline="")
        lines = [line + "\n" for line in text.split("\n")[:-1]]
        size = len(text.encode()) / 1e6
        for vocabulary, package, tokenizer, theirs in cases:
            mine, other = [], []
            for _ in range(ROUNDS):
                ids_a, a = ours(program, tokenizer, "-", str(path))
                ids_b, b = timed(theirs, lines)
                if ids_a != ids_b:
                    sys.exit(f"{vocabulary}, {name}: espalier gave {ids_a} ids, {package} gave {ids_b}")
                mine.append(size / a)
                other.append(size / b)
            a, b = statistics.median(mine), statistics.median(other)
            print(f"| {vocabulary} | {name}, {size:.1f} MB | {a:.1f} | {package} | {b:.2f} | {a / b:.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
