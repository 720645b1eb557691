"""Resource leaks: compares descriptors, threads, shared memory and files of a job after many recoveries with those after the
first few. None may grow, and after the end of the job none may remain on the host.

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
from cli_runner import children, ranks_of, wait_until  # noqa: E402
from recover_driving import LAYOUTS, Job  # noqa: E402

SNAPSHOT_EVERY = 5


def shared_memory(pids):
    """Shared-memory segments created by these processes: their names start with the process id. Segments of other programs
    do not count."""
    return {path for path in glob.glob("/dev/shm/espalier-[0-9]*-*")
            if int(os.path.basename(path).split("-")[1]) in pids}


def snapshot_folder(launcher):
    """The snapshot folder of the launcher. The launcher keeps it open to hold its lock."""
    for name in os.listdir(f"/proc/{launcher}/fd"):
        try:
            path = os.readlink(f"/proc/{launcher}/fd/{name}")
        except FileNotFoundError:  # closed in the meantime
            continue
        if path.startswith("/dev/shm/espalier-snapshots-"):
            return path
    sys.exit("the launcher has no open snapshot folder")


def counts(job, pids, snapshots):
    """Resources of the launcher, of rank 0 (never killed), and of everything the job's processes created."""
    found = {}
    for name, pid in (("launcher", job.process.pid), ("rank 0", ranks_of(job.process.pid)[0])):
        found[name + " descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
        found[name + " threads"] = len(os.listdir(f"/proc/{pid}/task"))
        with open(f"/proc/{pid}/maps") as maps:
            found[name + " shared mappings"] = sum("/dev/shm/" in line for line in maps)
    found["shared memory"] = len(shared_memory(pids))
    found["snapshot files"] = sum(len(names) for _, _, names in os.walk(snapshots))
    found["temporary files"] = sum(len(names) for _, _, names in os.walk(job.temporary))
    return found


def settled(look, enough=None):
    """The minimum of several measurements, because connections and snapshots come and go. With `enough`: measures until
    nothing exceeds it, or for 20 s."""
    least = look()
    until = time.monotonic() + 20
    for number in range(10**6):
        time.sleep(0.05)
        least = {name: min(value, least[name]) for name, value in look().items()}
        if number >= 8 and (enough is None or all(least[name] <= enough[name] for name in least)
                            or time.monotonic() > until):
            return least


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recoveries", type=int, default=20)
    parser.add_argument("--layout", choices=LAYOUTS, default="dp")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("-v", action="store_true")
    options = parser.parse_args()
    random.seed(7)
    folder = tempfile.mkdtemp(prefix="espalier-kill-")
    temporary = os.path.join(folder, "tmp")
    os.mkdir(temporary)
    job = Job(folder, "leaks", 10**7, LAYOUTS[options.layout] + [f"checkpoint.snapshot_every={SNAPSHOT_EVERY}", "log.every=1"],
              options.ranks, environment={"TMPDIR": temporary})
    job.temporary = temporary
    pids = {job.process.pid}
    first = None
    try:
        while job.alive() and job.step() < 3:
            time.sleep(0.01)
        snapshots = snapshot_folder(job.process.pid)
        look = lambda: counts(job, pids, snapshots)  # noqa: E731
        for number in range(options.recoveries):
            pids.update(children(job.process.pid))
            if job.kill_one(spare_first=True) is None:
                job.end()
                sys.exit("the job ended:\n" + "".join(job.said))
            pids.update(children(job.process.pid))
            if number == 2:
                # Enough snapshots that old ones are deleted.
                wait_until(lambda since=job.step(): job.step() >= since + 4 * SNAPSHOT_EVERY or not job.alive())
                first = settled(look)
                first["snapshot files"] = max(look()["snapshot files"] for _ in range(200))
        last = settled(look, first)
        job.process.terminate()
        code = job.finish()
        left = shared_memory(pids) | set(glob.glob(snapshots)) | set(glob.glob(temporary + "/*"))
    finally:
        job.end()
        shutil.rmtree(folder)
    grown = {name: (first[name], last[name]) for name in first if last[name] > first[name]}
    print(f"{options.recoveries} recoveries, layout {options.layout}: " +
          ", ".join(f"{name} {first[name]} to {last[name]}" for name in first))
    if code != 75:
        sys.exit(f"the job ended with exit code {code}:\n" + "".join(job.said))
    if grown or left:
        sys.exit(f"grown resources: {grown}; remaining files: {left}")


if __name__ == "__main__":
    main()
