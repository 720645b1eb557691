"""What the measurements of communicating less share: the repository's text as one file, runs of the real binary, tables."""
import hashlib
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
ESPALIER = os.environ.get("ESPALIER", str(ROOT / "build/bin/espalier"))


def write_text(path):
    """README, docs and sources, frozen so that all runs read the same; returns words about it."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for room in ("esp", "apps"):
        files += sorted(one for one in (ROOT / room).rglob("*") if one.suffix in (".h", ".cpp"))
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
    """One run on this machine; its lines of metrics, or RuntimeError with what it said."""
    done = subprocess.run([ESPALIER, "train", str(run_file), "--nproc", str(ranks), "--run-dir", str(folder),
                           *settings(values)], capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise RuntimeError(f"{folder.name}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return metrics(folder)


def bytes_sent(folder, rank=0):
    """What a rank sent in the whole run, by its communicators."""
    with open(folder / f"ranks/rank-{rank}.json") as file:
        return sum(row["bytes_sent"] for row in json.load(file)["comm"])


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
