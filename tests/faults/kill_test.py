"""Kills random ranks of a job at random moments with SIGKILL. Prints the time to the next completed step, the recovery
source, the steps lost, and whether the parameters of every run are bitwise equal to those of a run without faults.

    ESPALIER=build/bin/espalier python3 tests/faults/kill_test.py --trials 200 --layout dp

`--rung default` sets neither --max-restarts nor checkpoint keys and asserts what the defaults promise: at most 60 s of
work lost, equal bits, every restart counted. A third of its runs are killed at moments of the clock, not after steps:
during start-up, during a recovery, during the final checkpoint, or at any time. With ESPALIER_TEST_LONG=1 and 100 or more
trials, recoveries in place must take at most 1 s (p99):

    ESPALIER=build/bin/espalier python3 tests/faults/kill_test.py --rung default --trials 20 --layout tp_pp --ranks 4
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
MOST_WORK_LOST_S = 60  # promised by the default snapshots
DEFAULT_RESTARTS = 3
LONG = os.environ.get("ESPALIER_TEST_LONG") == "1"
MOST_RECOVERY_S, FEWEST_TIMED_TRIALS = 1.0, 100  # p99 of the recoveries in place
LONGEST_RECOVERY_S = 0.3  # a kill «during a recovery» comes at most this long after the previous kill
EVALUATION = ["train.eval_every=10", "data.val_fraction=0.2"]


def settings_of(options):
    rung = {"in_place": ["checkpoint.snapshot_every=%d" % options.every],
            "snapshot": ["checkpoint.snapshot_every=%d" % options.every],
            "disk": ["checkpoint.every=%d" % options.every, "checkpoint.keep=2"], "default": []}[options.rung]
    return LAYOUTS[options.layout] + EVALUATION + rung + options.set


class Moments:
    """Random moments of a run, timed like the run without faults: the seconds until its first step, until its last step,
    and until its end."""

    def __init__(self, reference):
        lines = reference.lines("metrics.jsonl")
        self.first_s, self.last_s = lines[0]["mono_s"] - reference.started, lines[-1]["mono_s"] - reference.started
        self.end_s = reference.ended - reference.started

    def kill(self, job, steps, count):
        """Kills `count` ranks of the job; returns the times."""
        kills = []
        for kind in sorted(random.choices(range(4), k=count)):
            if kind == 0:  # during start-up
                moment = job.started + random.uniform(0, self.first_s)
            elif kind == 1:  # at any time
                moment = job.started + random.uniform(0, self.end_s)
            elif kind == 2:  # during a recovery
                moment = (kills[-1] if kills else job.started + self.last_s / 2) + random.uniform(0, LONGEST_RECOVERY_S)
            else:  # during the final evaluation and checkpoint
                while job.alive() and job.step() < steps:
                    time.sleep(0.002)
                moment = time.monotonic() + random.uniform(0, self.end_s - self.last_s)
            kill = job.kill_at(moment)
            if kill is None:
                break
            kills.append(kill)
        return kills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--per-run", type=int, default=10, help="kills in one run")
    parser.add_argument("--layout", choices=[*LAYOUTS, "all"], default="dp", help="all: divides the trials among all layouts")
    parser.add_argument("--long-trials", type=int, help="replaces --trials if ESPALIER_TEST_LONG=1")
    parser.add_argument("--rung", choices=["in_place", "snapshot", "disk", "default"], default="in_place")
    parser.add_argument("--every", type=int, default=2, help="steps between snapshots, or checkpoints")
    parser.add_argument("--steps-per-kill", type=int, default=25, help="length of a run")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--at-any-moment", type=float, help="share of the runs that are killed at moments of the clock; "
                        "1/3 with --rung default, else 0")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.long_trials and LONG:
        options.trials = options.long_trials
    if options.at_any_moment is None:
        options.at_any_moment = 1 / 3 if options.rung == "default" else 0
    random.seed(options.seed)
    layouts = list(LAYOUTS) if options.layout == "all" else [options.layout]
    total, recovered, resumed = options.trials, [], []
    for i, layout in enumerate(layouts):
        options.layout, options.trials = layout, total * (i + 1) // len(layouts) - total * i // len(layouts)
        if options.trials:
            figures = campaign(options)
            recovered += figures[0]
            resumed += figures[1]
    print(f"{total} kills over {len(layouts)} layouts")
    check_recovery_time("to the restored state, as the launcher prints it", recovered, LONG and total >= FEWEST_TIMED_TRIALS)
    check_recovery_time("to the next completed step", resumed, LONG and total >= FEWEST_TIMED_TRIALS)


def check_recovery_time(what, seconds, limited):
    if not seconds:
        return
    print(f"  {len(seconds)} recoveries in place, {what}: p50 {percentile(seconds, 50) * 1e3:.0f} ms  "
          f"p99 {percentile(seconds, 99) * 1e3:.0f} ms  most {max(seconds) * 1e3:.0f} ms")
    if limited and percentile(seconds, 99) > MOST_RECOVERY_S:
        sys.exit(f"recovery in place, {what}: got p99 = {percentile(seconds, 99):.3f} s; expected at most {MOST_RECOVERY_S} s")


def kill_after_steps(job, count, most_steps):
    """Kills up to `count` ranks, each 3 to `most_steps` steps after the last recovery; returns one trial for each. By steps,
    not by time: on a fast machine the run must not end before its last kill."""
    trials, reached = [], 0
    while len(trials) < count:
        target = reached + random.randint(3, most_steps)
        while job.alive() and job.step() < target:
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.01))
        trial = job.kill_one()
        if trial is None:
            break
        trials.append(trial)
        reached = trial["step"]
    return trials


def campaign(options):
    """Runs all trials of one layout. Returns the seconds of its recoveries in place: from the failure to the restored state,
    and from the kill to the next step."""
    folder = tempfile.mkdtemp(prefix="espalier-kill-")
    default = options.rung == "default"
    flags = [] if options.rung in ("in_place", "default") else ["--no-reform"]
    restarts = None if default else 1000
    per_run = min(options.per_run, options.trials, DEFAULT_RESTARTS if default else options.trials)
    steps = options.steps_per_kill * (per_run + 1)
    trials, jobs, recoveries, resumed, num_timed, runs, identical, misses = [], [], [], [], 0, 0, 0, 0
    try:
        reference = Job(folder, "reference", steps, settings_of(options), options.ranks, restarts)
        jobs.append(reference)
        if reference.finish() != 0:
            sys.exit("the reference run failed:\n" + "".join(reference.said))
        state, curve, moments = reference.state(steps), reference.curve(), Moments(reference)
        if [line[0] for line in curve] != list(range(1, steps + 1)):
            sys.exit(f"the reference run logged {len(curve)} of {steps} steps")
        while len(trials) + num_timed < options.trials:
            runs += 1
            count = min(per_run, options.trials - len(trials) - num_timed)
            job = Job(folder, f"killed-{runs}", steps, settings_of(options), options.ranks, restarts, flags)
            jobs.append(job)
            kills, made = [], []
            if random.random() < options.at_any_moment:
                # A kill in the last milliseconds may cost two restarts: one in place, which then turns out impossible.
                kills = moments.kill(job, steps, min(count, DEFAULT_RESTARTS - 1))
            else:
                made = kill_after_steps(job, count, options.steps_per_kill if default else options.steps_per_kill // 2)
            trials += made
            num_timed += len(kills)
            code = job.finish()
            wrong = f"exit code {code}" if code != 0 else "other parameters" if job.state(steps) != state else curves_differ(curve, job.curve())
            identical += not wrong
            recoveries += job.recovery_seconds()
            resumed += job.seconds_to_next_step(kills) + [trial["seconds"] for trial in made if trial["in_place"]]
            if wrong or options.verbose:
                print("".join(job.said))
            if wrong:
                sys.exit(f"run {runs} (seed {options.seed}): {wrong}")
            # Two kills may cost one restart; one before the first step or after the last need not cost any.
            fewest, most = (len(job.recoveries()), len(kills)) if kills else (len(made), len(made))
            if not fewest <= job.restarts() <= most:
                sys.exit(f"run {runs} (seed {options.seed}): {most} ranks killed, {len(job.recoveries())} recoveries; "
                         f"summary.json counts {job.restarts()} restarts")
            misses += not made and not kills  # the run ended before a rank was killed
            if misses > MOST_MISSES:
                sys.exit("the runs ended before a rank was killed")
            shutil.rmtree(job.dir)
    finally:
        for job in jobs:
            job.end()
        shutil.rmtree(folder)
        if trials or num_timed:  # also after a failure
            print_summary(options, trials, num_timed, recoveries, runs, identical)
    if default:
        worst = max((trial["lost_s"] for trial in trials), default=0)
        if worst > MOST_WORK_LOST_S:
            sys.exit(f"{worst:.1f} s of work were lost")
        return recoveries, resumed
    # From memory: the current step; otherwise the steps since the last snapshot or checkpoint.
    too_many = [trial for trial in trials if trial["lost"] > (1 if trial["rung"] == "memory" else options.every)]
    if too_many:
        sys.exit(f"too many steps were lost: {too_many}")
    if options.rung == "in_place" and not any(trial["in_place"] for trial in trials):
        sys.exit("no recovery was in place")
    return recoveries, resumed


def curves_differ(expected, found):
    """The first difference between the logged steps of two runs; empty if they are equal line by line."""
    for i, (one, other) in enumerate(zip(expected, found)):
        if one != other:
            return f"line {i + 1} of metrics.jsonl is {other}; expected {one}"
    return "" if len(expected) == len(found) else f"metrics.jsonl has {len(found)} steps; expected {len(expected)}"


def print_summary(options, trials, num_timed, recoveries, runs, identical):
    print(f"layout {options.layout}, {options.ranks} ranks, {len(trials)} kills after steps and {num_timed} at any moment in "
          f"{runs} runs, seed {options.seed}")
    if trials:
        seconds = [trial["seconds"] for trial in trials]
        rungs = collections.Counter(("in place, " if trial["in_place"] else "") + trial["rung"] for trial in trials)
        print(f"  to the next step   p50 {percentile(seconds, 50):.3f} s  p99 {percentile(seconds, 99):.3f} s  "
              f"most {max(seconds):.3f} s")
        print(f"  steps lost         most {max(trial['lost'] for trial in trials)}; of work "
              f"p50 {percentile([trial['lost_s'] for trial in trials], 50):.2f} s  "
              f"most {max(trial['lost_s'] for trial in trials):.2f} s")
        print(f"  rung               {', '.join(f'{name}: {count}' for name, count in rungs.most_common())}")
    if recoveries:
        print(f"  recovered in place p50 {percentile(recoveries, 50) * 1e3:.0f} ms  p99 {percentile(recoveries, 99) * 1e3:.0f} ms")
    print(f"  bit-identical      {identical} of {runs} runs: parameters, optimizer state, and every line of metrics.jsonl, each logged once",
          flush=True)


if __name__ == "__main__":
    main()
