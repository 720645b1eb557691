"""Baseline for kill_test.py: torchrun with gloo. A small network with DistributedDataParallel saves its state every K steps.
Kills random ranks with SIGKILL and prints the time from the kill to the next completed step. Skipped with a message if
PyTorch is missing.

    /usr/bin/python3 tests/faults/kill_torchrun.py --trials 5
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def worker(folder, every):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(),
                                                        torch.nn.Linear(256, 64)))
    optimizer = torch.optim.AdamW(model.parameters())
    kept, step = os.path.join(folder, "kept.pt"), 0
    if os.path.exists(kept):
        state = torch.load(kept)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    with open(os.path.join(folder, "steps.jsonl"), "a") as log:
        while True:
            loss = model(torch.randn(16, 64)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0:
                log.write(json.dumps({"step": step, "mono_s": time.monotonic(), "pid": os.getpid()}) + "\n")
                log.flush()
                if step % every == 0:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                               kept + ".new")
                    os.replace(kept + ".new", kept)


def last(folder):
    try:
        with open(os.path.join(folder, "steps.jsonl")) as file:
            lines = [line for line in file.read().splitlines(True) if line.endswith("\n")]
        return json.loads(lines[-1]) if lines else None
    except FileNotFoundError:
        return None


def wait_for(condition, limit):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"torchrun made no progress within {limit} s")
        time.sleep(0.005)


def drive(trials, ranks, every):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "app"))
    from cli_runner import children

    folder = tempfile.mkdtemp(prefix="espalier-kill-")
    # Explicit log redirection: PyTorch 1.13 with Python 3.11 does not parse its own default.
    output = ["--redirects", "1", "--tee", "2", "--log_dir", os.path.join(folder, "log")]
    job = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks),
                            "--max_restarts", "1000", *output, __file__, "--worker", folder, "--every", str(every)],
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS="1"))
    seconds, lost = [], []
    try:
        wait_for(lambda: last(folder) is not None, 120)
        for _ in range(trials):
            time.sleep(random.uniform(0.2, 0.5))
            before = last(folder)
            began = time.monotonic()
            os.kill(random.choice(children(job.pid)), signal.SIGKILL)
            # torchrun restarts all ranks, so the first step of a new process is the first after the failure.
            wait_for(lambda: last(folder)["pid"] != before["pid"], 120)
            with open(os.path.join(folder, "steps.jsonl")) as file:
                first = next(line for line in map(json.loads, file) if line["mono_s"] > began and
                             line["pid"] != before["pid"])
            seconds.append(first["mono_s"] - began)
            lost.append(before["step"] - first["step"] + 1)
    finally:
        job.terminate()
        job.wait()
        shutil.rmtree(folder)
    seconds.sort()
    print(f"torchrun and gloo, {ranks} ranks, {trials} kills, saved every {every} steps: p50 "
          f"{seconds[len(seconds) // 2]:.2f} s, max {seconds[-1]:.2f} s, at most {max(lost)} steps lost")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.every)
        return
    try:
        import torch  # noqa: F401
    except ImportError:
        print("skipped: this Python has no PyTorch")
        return
    drive(options.trials, options.ranks, options.every)


if __name__ == "__main__":
    main()
