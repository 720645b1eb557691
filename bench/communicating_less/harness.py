"""Shared code of the measurements in this folder: the repository's text as one file, runs of the binary, tables."""
import hashlib
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
ESPALIER = os.environ.get("ESPALIER", str(ROOT / "build/bin/espalier"))


def write_text(path):
    """Writes README, docs and sources into one file, so that all runs read the same text; returns a description."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for folder in ("esp", "apps"):
        files += sorted(one for one in (ROOT / folder).rglob("*") if one.suffix in (".h", ".cpp"))
    text = b"".join(one.read_bytes() for one in files)
    path.write_bytes(text)
    return f"{len(text) / 1e6:.2f} MB of text, sha256 {hashlib.sha256(text).hexdigest()[:12]}"


def settings(values):
    words = []
    for key, value in values.items():
        words += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return words


def metrics(folder):
    with open(folder / "metrics.jsonl") as file:
        return [json.loads(line) for line in file if line.endswith("}\n")]


def train(run_file, folder, ranks, values, limit_s=3600):
    """Trains once on this machine. Returns the lines of metrics.jsonl, or raises RuntimeError with the output of the run."""
    done = subprocess.run([ESPALIER, "train", str(run_file), "--nproc", str(ranks), "--run-dir", str(folder),
                           *settings(values)], capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise RuntimeError(f"{folder.name}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return metrics(folder)


def bytes_sent(folder, rank=0):
    """Bytes that a rank sent in the whole run, from its communicators."""
    with open(folder / f"ranks/rank-{rank}.json") as file:
        return sum(row["bytes_sent"] for row in json.load(file)["comm"])


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
