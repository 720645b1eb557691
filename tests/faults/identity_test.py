"""If run file, data, tokenizer or binary differ between ranks, all ranks must refuse to train and name the key or file and the
ranks.
The difference may be by rank, by host, or by a change before a rank was restarted. Prints its figures;
ESPALIER_TEST_LONG=1 for all cases.

    ESPALIER=build/bin/espalier PYTHONPATH=tests/app:tests/e2e:tests/faults python3 tests/faults/identity_test.py -v
"""
import os
import re
import shutil
import signal
import subprocess
import time
import unittest

from cli_runner import ESPALIER, free_port, ranks_of, run, wait_until
from recover_driving import Job
from train_test import TempFolderTestCase
from fault_test_case import LONG, FaultTestCase

LAYOUTS = {
    "dp": [],
    "zero1": ["sync.method=zero1"],
    "zero3": ["sync.method=zero3"],
    "tp": ["parallel.tp=2"],
    "pp": ["parallel.pp=2", "train.micro_batch=4"],
    "ps": ["sync.method=ps"],
    "gossip": ["sync.method=gossip"],
    "local": ["sync.method=local"],
}
KEYS = {"train.lr": "0.5", "run.seed": "4", "train.global_batch": "16", "checkpoint.every": "3"}
LIMIT_S = 60
MOST_S = 1.0  # from the last rank's start to the last rank's end; asserted only in the long form

TEXT = "the quick brown fox jumps over the lazy dog. " * 400
OTHER_TEXT = TEXT[:9000] + "Q" + TEXT[9001:]  # same size
RUN_FILE = """
[run]
dir = "{folder}/run"
seed = {seed}
threads = 1
[model]
layers = 2
heads = 2
dim = 32
seq_len = 32
[data]
train = "{text}"
tokenizer = "{tokenizer}"
[train]
steps = 30
global_batch = {batch}
lr = {lr}
[checkpoint]
every = {every}
[log]
tensorboard = false
"""


class Case:
    """One test case: what differs, between which processes, and in which layout."""

    def __init__(self, layout, what, where="rank"):
        self.layout, self.what, self.where = layout, what, where

    def __str__(self):
        return f"{self.layout}, {self.what} by {self.where}"

    def code(self):
        return 4 if self.what in ("data", "tokenizer") else 2

    def names(self):
        """Pattern that the error message must contain, besides the ranks."""
        return {"data": r"data\.train \S*text\.txt", "tokenizer": r"data\.tokenizer \S*tokenizer\.json",
                "binary": "version of espalier"}.get(self.what, re.escape(self.what))


def all_cases():
    cases = [Case(layout, what) for layout in LAYOUTS for what in (*KEYS, "data")]
    cases += [Case(layout, "tokenizer") for layout in ("dp", "zero3", "local")]
    cases += [Case(layout, "binary") for layout in ("dp", "zero3", "gossip")]
    cases += [Case("dp", "train.lr", "host"), Case("zero3", "train.lr", "host"), Case("gossip", "run.seed", "host"),
              Case("dp", "data", "host"), Case("local", "tokenizer", "host"), Case("zero1", "checkpoint.every", "host")]
    cases += [Case(layout, "data", "restart") for layout in ("dp", "zero3", "tp", "gossip")]
    cases += [Case("dp", "tokenizer", "restart"), Case("dp", "binary", "restart"), Case("zero1", "data", "restart of all"),
              Case("dp", "train.lr", "restart under another launcher")]
    return cases


def short_cases():
    kinds = ["train.lr", "data", "run.seed", "checkpoint.every", "train.global_batch", "tokenizer", "binary", "data"]
    cases = [Case(layout, what) for layout, what in zip(LAYOUTS, kinds)]
    return cases + [Case("zero3", "train.lr", "host"), Case("dp", "data", "restart"), Case("dp", "data", "restart of all"),
                    Case("dp", "train.lr", "restart under another launcher")]


class IdentityTestCase(TempFolderTestCase):
    def setUp(self):
        super().setUp()
        self.started = []
        self.addCleanup(self.end_all)
        for name in ("here", "there"):
            os.mkdir(self.path(name))
        self.write("here/text.txt", TEXT)
        self.other_binary = None

    def end_all(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def write_tokenizer(self, where, vocab):
        made = run("tokenizer", "train", "--vocab", str(vocab), "--output",
                   self.path(where + "/tokenizer.json"), self.path("here/text.txt"))
        self.assertEqual(made.returncode, 0, made.stderr)

    def write_run_file(self, where, text="here", tokenizer="byte", **keys):
        values = dict({"seed": 3, "batch": 8, "lr": 1e-3, "every": 0}, **keys)
        return self.write(f"{where}/run.toml", RUN_FILE.format(
            folder=self.folder, text=self.path(f"{text}/text.txt"), tokenizer=tokenizer, **values))

    def make_other_binary(self):
        """Makes a copy of the program that reports another commit id."""
        version = run("--version").stdout.split("\n")[0]
        commit = re.search(r"\(([\w-]+),", version).group(1).encode()
        with open(ESPALIER, "rb") as file:
            program = file.read()
        other = commit[:-1] + (b"0" if commit[-1:] != b"0" else b"1")
        self.assertIn(commit + b"\0", program)
        path = self.path("espalier-other")
        with open(path, "wb") as file:
            file.write(program.replace(commit + b"\0", other + b"\0"))
        os.chmod(path, 0o755)
        return path

    def two_files(self, case):
        """Run file and binary of each of the two sides."""
        names = {"train.lr": "lr", "run.seed": "seed", "train.global_batch": "batch", "checkpoint.every": "every"}
        binary, other, mine, text = ESPALIER, {}, {}, "here"
        if case.what in names:
            other[names[case.what]] = KEYS[case.what]
        elif case.what == "data":
            self.write("there/text.txt", OTHER_TEXT)
            text = "there"
        elif case.what == "tokenizer":
            for where, vocab in (("here", 280), ("there", 281)):
                self.write_tokenizer(where, vocab)
            mine["tokenizer"], other["tokenizer"] = self.path("here/tokenizer.json"), self.path("there/tokenizer.json")
        else:
            binary = self.make_other_binary()
        return (ESPALIER, self.write_run_file("here", **mine)), (binary, self.write_run_file("there", text=text, **other))

    def begin(self, words, environment=None):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=dict(os.environ, **(environment or {})), start_new_session=True)
        self.started.append(process)
        return process

    def ends(self, processes):
        """Waits for the processes; returns their exit codes and all output."""
        said = ""
        for process in processes:
            try:
                said += process.communicate(timeout=LIMIT_S)[1]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                said += process.communicate()[1] + f"\nkilled after {LIMIT_S} s\n"
        return [process.returncode for process in processes], said

    def start_ranks(self, sides, settings, ranks, extra=None):
        """Starts one process per rank, as torchrun does; the last rank belongs to the other side."""
        port, processes = free_port(), []
        for rank in range(ranks):
            binary, run_file = sides[rank == ranks - 1]
            processes.append(self.begin([binary, "train", run_file, *settings], {
                "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(extra or {})}))
        return processes

    def refused_by_rank(self, case, settings):
        ranks = 2 if case.layout in ("tp", "pp") else 3
        settings += ["--set", f"train.global_batch={4 * ranks}"] if case.what != "train.global_batch" else []
        if case.what == "train.global_batch" and ranks == 3:
            ranks = 4
        processes = self.start_ranks(self.two_files(case), settings, ranks)
        begun = time.monotonic()
        codes, said = self.ends(processes)
        return codes, said, time.monotonic() - begun, f"rank {ranks - 1}"

    def refused_by_host(self, case, settings):
        secret = self.path("secret")
        with open(os.open(secret, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write("0123456789abcdef0123456789abcdef")
        port = free_port()
        processes = [self.begin([binary, "launch", "--nnodes", "2", "--nproc-per-node", "2", "--node-rank", str(host),
                                 "--rdzv-endpoint", f"127.0.0.1:{port}", "--secret-file", secret, "--", "train",
                                 run_file, *settings])
                     for host, (binary, run_file) in enumerate(self.two_files(case))]
        begun = time.monotonic()
        codes, said = self.ends(processes)
        return codes, said, time.monotonic() - begun, "ranks 2-3"

    def launched(self, case, settings, binary, *flags):
        run_file = self.write_run_file("here", tokenizer="byte" if case.what != "tokenizer" else
                                       self.path("here/tokenizer.json"))
        process = self.begin([binary, "launch", "--nproc-per-node", "2", "--max-restarts", "1000", *flags, "--", "train",
                              run_file, *settings, "--set", "train.steps=1000000", "--set", "log.every=1"])
        self.assertTrue(wait_until(lambda: self.logged_steps("run") > 5 or process.poll() is not None, LIMIT_S))
        self.assertIsNone(process.poll())
        return process

    def refused_by_restart(self, case, settings):
        binary = self.path("espalier")
        shutil.copy(ESPALIER, binary)
        if case.what == "tokenizer":
            self.write_tokenizer("here", 280)
            self.write_tokenizer("there", 281)
        flags = ["--no-reform"] if case.where == "restart of all" else []
        process = self.launched(case, settings, binary, *flags)
        if case.what == "data":  # replaces the file, so that only a restarted rank sees the new one
            os.replace(self.write("there/text.txt", OTHER_TEXT), self.path("here/text.txt"))
        elif case.what == "tokenizer":
            os.replace(self.path("there/tokenizer.json"), self.path("here/tokenizer.json"))
        else:
            os.replace(self.make_other_binary(), binary)
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        begun = time.monotonic()
        codes, said = self.ends([process])
        return codes, said, time.monotonic() - begun, "" if flags else "rank 1"

    def refused_under_another_launcher(self, case, settings):
        """The launcher restarts all ranks, and the run file was edited in between."""
        mine, _ = self.two_files(case)
        codes, said = self.ends(self.start_ranks((mine, mine), [*settings, "--set", "checkpoint.every=5"], 2))
        self.assertEqual(codes, [0, 0], said)
        other = (ESPALIER, self.write_run_file("here", lr="0.5"))
        processes = self.start_ranks((other, other), [*settings, "--set", "checkpoint.every=5", "--set", "train.steps=60"],
                                     2, {"TORCHELASTIC_RESTART_COUNT": "1"})
        begun = time.monotonic()
        codes, said = self.ends(processes)
        return codes, said, time.monotonic() - begun, ""

    def check(self, case):
        """Returns the seconds until the ranks refused."""
        settings = [word for one in LAYOUTS[case.layout] for word in ("--set", one)]
        how = {"rank": self.refused_by_rank, "host": self.refused_by_host, "restart": self.refused_by_restart,
               "restart of all": self.refused_by_restart,
               "restart under another launcher": self.refused_under_another_launcher}[case.where]
        codes, said, seconds, ranks = how(case, settings)
        self.assertEqual(set(codes), {case.code()}, f"{case}\n{said}")
        self.assertRegex(said, case.names(), str(case))
        self.assertIn(ranks, said, str(case))
        return seconds

    def check_all(self, cases):
        taken = []
        for case in cases:
            with self.subTest(str(case)):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                self.write("here/text.txt", TEXT)
                taken.append((self.check(case), str(case)))
        taken.sort()
        self.assertTrue(taken, "no case was rejected")
        print(f"{len(taken)} of {len(cases)} rejected, p50 {taken[len(taken) // 2][0]:.2f} s, max {taken[-1][0]:.2f} s "
              f"({taken[-1][1]})")
        return taken


class MismatchedRanks(IdentityTestCase):
    def test_ranks_refuse_differences_and_name_them(self):
        self.check_all(short_cases())

    def test_ranks_train_when_only_paths_and_times_differ(self):
        """Another host may have the same files at other paths, and another name of the run file."""
        mine, _ = self.two_files(Case("dp", "data"))
        os.mkdir(self.path("copy"))
        self.write("copy/text.txt", TEXT)
        os.utime(self.path("copy/text.txt"), (1, 1))
        other = self.write_run_file("copy", text="copy")
        shutil.copy(other, self.path("copy/named.toml"))
        codes, said = self.ends(self.start_ranks((mine, (ESPALIER, self.path("copy/named.toml"))),
                                                 ["--set", "run.threads=1"], 2))
        self.assertEqual(codes, [0, 0], said)


@unittest.skipUnless(LONG, "long form")
class AllRanks(IdentityTestCase):
    def test_ranks_refuse_differences_within_a_second(self):
        cases = all_cases()
        self.assertEqual(len(cases), 60)
        taken = self.check_all(cases)
        self.assertEqual(len(taken), 60)
        self.assertLessEqual(taken[-1][0], MOST_S, taken[-5:])


class EditedRunFile(TempFolderTestCase):
    """The run file is edited during the run, and then a rank is killed."""

    def killed(self, name, settings, ranks, edit):
        job = Job(self.folder, name, 60, settings + ["checkpoint.snapshot_every=2"], ranks)
        self.addCleanup(job.end)
        self.assertTrue(wait_until(lambda: job.step() > 5 or not job.alive(), 60))
        if edit:
            with open(job.run_file) as file:
                text = file.read()
            with open(job.run_file, "w") as file:
                file.write(text.replace("lr = 1e-2", "lr = 1e-1").replace("seed = 3", "seed = 4"))
            self.assertIsNotNone(job.kill_one(), "".join(job.said))
        self.assertEqual(job.finish(), 0, "".join(job.said))
        return job

    def check(self, settings, ranks):
        wanted = self.killed("peace", settings, ranks, False).state(60)
        edited = self.killed("edited", settings, ranks, True)
        self.assertEqual(edited.state(60), wanted)
        said = "".join(edited.said)
        self.assertIn("edited.toml has changed since the job began", said)

    def test_zero3_ignores_edits_during_the_run(self):
        self.check(["sync.method=zero3"], 2)

    @unittest.skipUnless(LONG, "long form")
    def test_every_method_ignores_edits_during_the_run(self):
        for name, settings in {"dp": [], "tp_pp": ["parallel.tp=2", "parallel.pp=2", "train.micro_batch=4"],
                               "gossip": ["sync.method=gossip"], "ps": ["sync.method=ps"]}.items():
            with self.subTest(name):
                for run_dir in ("peace", "edited"):
                    shutil.rmtree(self.path(run_dir), ignore_errors=True)
                self.check(settings, 4)


class ChangedText(FaultTestCase):
    """The text, or the token cache made from it, is changed in place while it was read."""
    words = ()

    def begun(self, launcher, ranks=2):
        process = self.begin("run", *self.words, ranks=ranks, launcher=launcher)
        self.wait_for_steps("run", process, self.logged_steps("run") + 5)
        return process

    def use_trained_tokenizer(self):
        path = self.path("tokenizer.json")
        made = run("tokenizer", "train", "--vocab", "300", "--output", path, self.path("text.txt"))
        self.assertEqual(made.returncode, 0, made.stderr)
        self.words = ("--set", "data.tokenizer=" + path)

    def check_ended(self, process, *parts):
        self.assertEqual(self.wait_for_end(process), 4, self.said("run"))
        for part in parts:
            self.assertIn(part, self.said("run"))
        self.assertNotIn("restarting all ranks", self.said("run"))
        self.assertNotIn("recovered in", self.said("run"))

    def test_job_ends_when_text_is_truncated(self):
        process = self.begun(("launch", "--nproc-per-node", "2", "--max-restarts", "5", "--", "train"))
        os.truncate(self.path("text.txt"), 4096)
        self.check_ended(process, "text.txt", "got 4096 bytes; expected 18000")

    def test_job_ends_when_text_is_overwritten(self):
        process = self.begun(("train",))
        with open(self.path("text.txt"), "r+") as file:
            file.write("THE QUICK")
        self.check_ended(process, self.path("text.txt") + " was changed while it was read: its content differs")

    def token_cache(self):
        """Path of the run's only token cache; a tokenizer other than byte writes one."""
        names = [name for name in os.listdir(self.path("run/cache")) if name.endswith(".bin")]
        self.assertEqual(len(names), 1, names)
        return self.path("run/cache/" + names[0])

    def overwrite_cache(self):
        with open(self.token_cache(), "r+b") as file:
            file.seek(100)
            file.write(b"\0\0\0\0")

    def test_job_ends_when_token_cache_is_overwritten(self):
        self.use_trained_tokenizer()
        process = self.begun(("train",))
        self.overwrite_cache()
        self.check_ended(process, self.token_cache() + " was changed while it was read: its content differs")

    def test_changed_token_cache_is_written_again_when_the_run_resumes(self):
        self.use_trained_tokenizer()
        process = self.begun(("train",))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.wait_for_end(process), 75, self.said("run"))
        with open(self.token_cache(), "rb") as file:
            before = file.read()
        self.overwrite_cache()
        process = self.begun(("train",))
        with open(self.token_cache(), "rb") as file:
            self.assertEqual(file.read(), before)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.wait_for_end(process), 75, self.said("run"))

    def test_job_continues_when_text_is_only_touched(self):
        process = self.begun(("train",))
        os.utime(self.path("text.txt"))
        self.wait_for_steps("run", process, self.logged_steps("run") + 10)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.wait_for_end(process), 75, self.said("run"))

    def test_changed_text_is_named_when_the_run_resumes(self):
        process = self.begun(("train",))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.wait_for_end(process), 75, self.said("run"))
        with open(self.path("text.txt"), "a") as file:
            file.write("more")
        self.check_ended(self.begin("run", ranks=2), "contains a run that read other data", "18000 bytes", "18004 bytes",
                         "--continue-with-changes")
        process = self.begin("run", "--continue-with-changes", ranks=2)
        self.wait_for_steps("run", process, self.logged_steps("run") + 5)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.wait_for_end(process), 75, self.said("run"))


class Restarts(FaultTestCase):
    def test_job_ends_with_the_cause_when_restarts_do_not_help(self):
        launcher = ("launch", "--nproc-per-node", "2", "--max-restarts", "1000", "--", "train")
        process = self.begin("run", "--set", "run.check_replicas_every=5", "--set", "checkpoint.snapshot_every=2", ranks=2,
                             launcher=launcher, fault="flip:1:5:12345")
        self.assertEqual(self.wait_for_end(process), 3, self.said("run"))
        said = self.said("run")
        self.assertIn("3 consecutive restarts made no progress beyond step 5", said)
        self.assertIn("run file, data files and binary are not the cause", said)
        self.assertEqual(len(self.events("run", "recovered")), 3)


class DeletedFolder(FaultTestCase):
    def checkpointed(self, name):
        return self.begin(name, "--set", "checkpoint.every=2", "--set", "checkpoint.keep=2", ranks=2)

    def test_deleted_folder_ends_the_run_and_is_free_for_the_next(self):
        first = self.checkpointed("run")
        self.wait_for_steps("run", first, 5)
        os.rename(self.path("run.stderr"), self.path("first.stderr"))
        shutil.rmtree(self.path("run"), ignore_errors=True)
        while os.path.exists(self.path("run")):  # the run keeps writing during the deletion
            shutil.rmtree(self.path("run"), ignore_errors=True)
        second = self.begin("run", "--set", "checkpoint.every=2", "--set", "checkpoint.keep=0", ranks=2, steps=40)
        self.assertEqual(self.wait_for_end(first), 4)
        with open(self.path("first.stderr")) as file:
            self.assertIn(f"run folder {self.path('run')}: it was deleted or moved", file.read())
        self.assertEqual(self.wait_for_end(second), 0, self.said("run"))
        self.assertEqual(sorted(int(name[5:]) for name in os.listdir(self.path("run/checkpoints"))), list(range(2, 41, 2)))


if __name__ == "__main__":
    unittest.main()
