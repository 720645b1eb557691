"""Kills random ranks of a job at random moments with signal 9 and prints how long it takes to the next completed step,
which rung of the recovery ladder was taken, how many steps were lost, and whether the parameters of every run are, bit
for bit, those of a run left in peace.

    ESPALIER=build/bin/espalier python3 tests/faults/kill_test.py --trials 200 --layout dp
"""
import argparse
import collections
import os
import random
import shutil
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "app"))
from recover_driving import LAYOUTS, Job, percentile  # noqa: E402

MOST_MISSES = 5


def settings_of(options):
    rung = {"in_place": ["checkpoint.snapshot_every=%d" % options.every],
            "snapshot": ["checkpoint.snapshot_every=%d" % options.every],
            "disk": ["checkpoint.every=%d" % options.every, "checkpoint.keep=2"]}[options.rung]
    return LAYOUTS[options.layout] + rung + options.set


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--per-run", type=int, default=10, help="kills in one run")
    parser.add_argument("--layout", choices=LAYOUTS, default="dp")
    parser.add_argument("--rung", choices=["in_place", "snapshot", "disk"], default="in_place")
    parser.add_argument("--every", type=int, default=2, help="steps between snapshots, or checkpoints")
    parser.add_argument("--steps-per-kill", type=int, default=25, help="length of a run")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    random.seed(options.seed)
    folder = tempfile.mkdtemp(prefix="espalier-kill-")
    flags = [] if options.rung == "in_place" else ["--no-reform"]
    per_run = min(options.per_run, options.trials)
    steps = options.steps_per_kill * (per_run + 1)
    trials, jobs, reforms, runs, identical, misses = [], [], [], 0, 0, 0
    try:
        peace = Job(folder, "peace", steps, settings_of(options), options.ranks)
        jobs.append(peace)
        if peace.finish() != 0:
            sys.exit("the run in peace failed:\n" + "".join(peace.said))
        wanted = peace.state(steps)
        while len(trials) < options.trials:
            runs += 1
            job = Job(folder, f"killed-{runs}", steps, settings_of(options), options.ranks, flags=flags)
            jobs.append(job)
            made = reached = 0
            while made < min(per_run, options.trials - len(trials) + made):
                # By steps, not by the clock: however fast the machine, the run is not over before its last kill.
                target = reached + random.randint(3, options.steps_per_kill // 2)
                while job.alive() and job.step() < target:
                    time.sleep(0.002)
                time.sleep(random.uniform(0, 0.01))
                trial = job.kill_one()
                if trial is None:
                    break
                trials.append(trial)
                reached = trial["step"]
                made += 1
            code = job.finish()
            same = code == 0 and job.state(steps) == wanted
            identical += same
            reforms += job.reform_seconds()
            if not same or options.verbose:
                print("".join(job.said))
            if not same:
                sys.exit(f"run {runs} (seed {options.seed}) ended with {code} and other parameters")
            misses += made == 0  # on a machine that did not let us in between
            if misses > MOST_MISSES:
                sys.exit("the runs ended before a rank was killed")
            shutil.rmtree(job.dir)
    finally:
        for job in jobs:
            job.end()
        shutil.rmtree(folder)
        if trials:  # also of what was stopped on the way
            tell(options, trials, reforms, runs, identical)
    # From memory the step under way; else what was made since the last snapshot or checkpoint.
    too_many = [trial for trial in trials if trial["lost"] > (1 if trial["rung"] == "memory" else options.every)]
    if too_many:
        sys.exit(f"more steps were lost than may be: {too_many}")
    if options.rung == "in_place" and not any(trial["in_place"] for trial in trials):
        sys.exit("no recovery went in place")


def tell(options, trials, reforms, runs, identical):
    seconds = [trial["seconds"] for trial in trials]
    rungs = collections.Counter(("in place, " if trial["in_place"] else "") + trial["rung"] for trial in trials)
    print(f"layout {options.layout}, {options.ranks} ranks, {len(trials)} kills in {runs} runs, seed {options.seed}")
    print(f"  to the next step   p50 {percentile(seconds, 50):.3f} s  p99 {percentile(seconds, 99):.3f} s  "
          f"most {max(seconds):.3f} s")
    print(f"  steps lost         most {max(trial['lost'] for trial in trials)}")
    print(f"  rung               {', '.join(f'{name}: {count}' for name, count in rungs.most_common())}")
    if reforms:
        print(f"  together again     p50 {percentile([r[0] for r in reforms], 50):.3f} s  "
              f"p99 {percentile([r[0] for r in reforms], 99):.3f} s; communicator "
              f"p50 {percentile([r[1] for r in reforms], 50) * 1e3:.0f} ms  "
              f"p99 {percentile([r[1] for r in reforms], 99) * 1e3:.0f} ms")
    print(f"  bit-identical      {identical} of {runs} runs")


if __name__ == "__main__":
    main()
