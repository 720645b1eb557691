"""Descriptors, threads, shared memory and files of a job that has gone through many recoveries, against those after the
first few: none may grow. And after its end nothing of it is left on the host.

    ESPALIER=build/bin/espalier python3 tests/faults/recover_leak_test.py --recoveries 200
"""
import argparse
import glob
import os
import random
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "app"))
from driving import children  # noqa: E402
from recover_driving import LAYOUTS, Job  # noqa: E402


def shared_memory():
    return set(glob.glob("/dev/shm/espalier-*"))


def temporary_files():
    return {path for path in glob.glob("/tmp/espalier*") if not path.startswith("/tmp/espalier-kill-")}


def counts(job):
    """Of the launcher and of rank 0, which is never killed."""
    found = {}
    for who, pid in (("launcher", job.process.pid), ("rank 0", children(job.process.pid)[0])):
        found[who + " descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        found[who + " threads"] = len(os.listdir(f"/proc/{pid}/task"))
        with open(f"/proc/{pid}/maps") as maps:
            found[who + " shared mappings"] = sum("/dev/shm/" in line for line in maps)
    found["shared memory"] = len(shared_memory())
    found["snapshot files"] = sum(len(names) for path in glob.glob("/dev/shm/espalier-snapshots-*")
                                  for _, _, names in os.walk(path))
    return found


def settled(job):
    """The least of several looks: connections and snapshots come and go as it works."""
    looks = []
    for _ in range(8):
        time.sleep(0.05)
        looks.append(counts(job))
    return {name: min(look[name] for look in looks) for name in looks[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recoveries", type=int, default=20)
    parser.add_argument("--layout", choices=LAYOUTS, default="dp")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    random.seed(7)
    before = shared_memory(), temporary_files()
    folder = tempfile.mkdtemp(prefix="espalier-kill-")
    job = Job(folder, "leaks", 10**7, LAYOUTS[options.layout] + ["checkpoint.snapshot_every=5", "log.every=1"],
              options.ranks)
    first = None
    try:
        while job.alive() and job.step() < 3:
            time.sleep(0.01)
        for number in range(options.recoveries):
            if job.kill_one(spare_first=True) is None:
                job.end()
                sys.exit("the job ended:\n" + "".join(job.said))
            if number == 2:
                first = settled(job)
        last = settled(job)
        job.process.terminate()
        code = job.finish()
    finally:
        job.end()
        shutil.rmtree(folder)
    grown = {name: (first[name], last[name]) for name in first if last[name] > first[name]}
    # Other programs on this host come and go meanwhile: what is ours would stay.
    left = (shared_memory() - before[0]) | (temporary_files() - before[1])
    until = time.monotonic() + 60
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left &= shared_memory() | temporary_files()
    print(f"{options.recoveries} recoveries, layout {options.layout}: " +
          ", ".join(f"{name} {first[name]} to {last[name]}" for name in first))
    if code != 75:
        sys.exit(f"it ended with {code}:\n" + "".join(job.said))
    if grown or left:
        sys.exit(f"grown: {grown}; left behind: {left}")


if __name__ == "__main__":
    main()
