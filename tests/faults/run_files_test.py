"""Fuzz test of run files: a few random keys with random values on a tiny model. Each file must train, or be rejected with the
reason (exit 2 or 4). None may crash, hang, or cause an internal error.

    ESPALIER=build/bin/espalier python3 tests/faults/run_files_test.py --seed 7 --files 1000
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile

from cli_runner import ESPALIER, run

# These keys are not randomised. Random names and paths would write to arbitrary places or refer to missing files; a short
# timeout would correctly end a run.
FIXED = {"run.name", "run.dir", "run.device", "model.preset", "model.init", "data.train", "data.val", "data.cache",
         "data.tokenizer", "train.steps", "parallel.layout", "sync.offload_dir", "checkpoint.dir", "checkpoint.snapshot_dir", "comm.timeout_s"}
METHODS = ["allreduce", "zero1", "zero2", "zero3", "ps", "gossip", "local", "diloco"]
NUMBERS = {"real": ["0.0", "0.5", "1.0", "1e-3", "2.0", "10.0", "-1.0", "1e30", "1e-30", "0.25"],
           "whole": ["0", "1", "2", "3", "4", "5", "7", "8", "16", "64", "-1", "1000"]}
LIMIT_S = 120


def keys():
    """(section.key, default, help) from the binary's own table."""
    section, found = None, []
    for line in run("train", "--keys").stdout.split("\n"):
        if heading := re.match(r"## \[(\w+)\]", line):
            section = heading.group(1)
        elif row := re.match(r"\| `(\w+)` \| `(.*?)` \| (.*) \|", line):
            found.append((f"{section}.{row.group(1)}", row.group(2), row.group(3)))
    return [key for key in found if key[0] not in FIXED]


def drawn(key, draw):
    _, default, about = key
    if default in ("true", "false"):
        return draw.choice(["true", "false"])
    if default.startswith("'"):  # words of the key's help text; some are valid values
        return json.dumps(draw.choice(re.findall(r"[a-z0-9_-]+", about) + [default.strip("'")] * 2 + [""]))
    if default.startswith("["):
        return "[]"
    return draw.choice(NUMBERS["real" if re.search(r"[.e]", default) else "whole"])


def run_file(table, folder, draw):
    arch = draw.choice(["gpt", "gpt", "llama", "bert", "t5"])
    settings = {"model.arch": json.dumps(arch), "model.dim": "32", "model.seq_len": "32", "model.layers": draw.choice("24"),
                "model.heads": draw.choice("24"), "model.vocab": "400", "data.train": json.dumps(folder + "/text.txt"),
                "train.steps": "2", "train.global_batch": "8", "train.eval_batches": "1", "run.threads": "1",
                "log.tensorboard": "false"}
    if draw.random() < 0.5:
        settings["sync.method"] = json.dumps(draw.choice(METHODS))
    for key in draw.sample(table, draw.choice([1, 1, 2, 2, 3, 4, 6])):
        settings[key[0]] = drawn(key, draw)
    sections = {}
    for path, value in settings.items():
        section, key = path.split(".")
        sections.setdefault(section, []).append(f"{key} = {value}\n")
    return "".join(f"[{name}]\n" + "".join(lines) for name, lines in sections.items())


def train(folder, num_ranks):
    shutil.rmtree(folder + "/run", ignore_errors=True)
    command = [ESPALIER, "train", folder + "/run.toml", "--run-dir", folder + "/run", "--nproc", str(num_ranks)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
                               start_new_session=True)
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=40, help="number of run files")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, table = random.Random(options.seed), keys()
    if len(table) < 50:
        sys.exit(f"only {len(table)} keys were found")
    endings, wrong = {}, 0
    with tempfile.TemporaryDirectory(prefix="espalier-run-files-") as folder:
        with open(folder + "/text.txt", "w") as file:
            file.write("the quick brown fox jumps over the lazy dog. " * 400)
        for number in range(options.files):
            text = run_file(table, folder, draw)
            with open(folder + "/run.toml", "w") as file:
                file.write(text)
            num_ranks = draw.choice([1, 1, 2, 4])
            code, output = train(folder, num_ranks)
            endings[code] = endings.get(code, 0) + 1
            if code not in (0, 2, 4) or "bug in espalier" in output:
                wrong += 1
                print(f"file {number}, {num_ranks} ranks, ended with {code}:\n{text}\n" + "\n".join(output.split("\n")[-6:]))
    print(f"{options.files} run files of seed {options.seed}: " +
          ", ".join(f"{count} ended with {code}" for code, count in sorted(endings.items(), key=str)))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
