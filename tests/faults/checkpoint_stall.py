"""Measures how long training pauses for a checkpoint of 1 GB of state, written synchronously and in the background. To run it:
    ESPALIER=build/bin/espalier python3 tests/faults/checkpoint_stall.py [STEPS] [FOLDER]
metrics.jsonl has the duration and end of each step. The stall is the time between two steps minus the usual gap. Steps
during a background write may also be slower; their mean time is printed separately."""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

ESPALIER = os.environ.get("ESPALIER", "build/bin/espalier")
EVERY = 4
RUN = """
[run]
dir = "{folder}/run"
[model]
arch = "gpt"
layers = 7
heads = 16
dim = 1024
seq_len = 128
[data]
train = "{folder}/text.txt"
[train]
steps = {steps}
global_batch = {batch}
[checkpoint]
every = {every}
keep = 1
async = {behind}
[log]
tensorboard = false
"""


def measure(folder, steps, behind, batch):
    with open(os.path.join(folder, "text.txt"), "w") as file:
        file.write("the quick brown fox jumps over the lazy dog. " * 400)
    with open(os.path.join(folder, "run.toml"), "w") as file:
        file.write(RUN.format(folder=folder, steps=steps, every=EVERY, behind=str(behind).lower(), batch=batch))
    subprocess.run([ESPALIER, "train", os.path.join(folder, "run.toml")], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    with open(os.path.join(folder, "run/metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    newest = os.path.join(folder, "run/checkpoints", f"step-{steps}")
    state = sum(os.path.getsize(os.path.join(newest, name)) for name in os.listdir(newest))
    shutil.rmtree(os.path.join(folder, "run"))
    gaps = {now["step"]: (now["mono_s"] - before["mono_s"]) * 1e3 - now["step_ms"] for before, now in zip(lines, lines[1:])}
    after = [step for step in gaps if (step - 1) % EVERY == 0]
    others = [gap for step, gap in gaps.items() if step not in after]
    stalls = [gaps[step] - statistics.median(others) for step in after]
    # With long steps, the second step after the save no longer overlaps the write.
    quiet = statistics.median(line["step_ms"] for line in lines[1:] if line["step"] % EVERY == 0)
    beside = statistics.mean(line["step_ms"] for line in lines[1:] if (line["step"] - 1) % EVERY == 0)
    return state, stalls, quiet, beside


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 13
    folder = tempfile.mkdtemp(prefix="espalier-stall-", dir=sys.argv[2] if len(sys.argv) > 2 else None)
    try:
        for behind in [mode == "async" for mode in os.environ.get("STALL_MODES", "sync,async").split(",")]:
            state, stalls, quiet, beside = measure(folder, steps, behind, int(os.environ.get("STALL_BATCH", "8")))
            print(f"{'async' if behind else 'sync '}  {state / 1e9:.2f} GB of state  step {quiet:.0f} ms  stall "
                  + ", ".join(f"{stall:.0f}" for stall in stalls) + f" ms (median {statistics.median(stalls):.0f} ms, "
                  f"{100 * statistics.median(stalls) / quiet:.1f} % of a step)  step during the write {beside:.0f} ms",
                  flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
