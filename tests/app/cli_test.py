"""Tests help, version, colours, error messages and exit codes of the binary."""
import json
import os
import pathlib
import pty
import resource
import shutil
import stat
import subprocess
import tempfile
import unittest

from cli_runner import ESPALIER, run

COMMANDS = [[], ["bench"], ["bench", "comm"], ["lab"], ["lab", "allreduce"], ["doctor"], ["completion"],
            ["data"], ["data", "prepare"], ["data", "info"]]


def on_terminal(*arguments, env=None):
    """Output of the binary with a terminal as stdout and stderr."""
    parent_end, child_end = pty.openpty()
    environment = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, "TERM": "xterm", **(env or {})}
    process = subprocess.Popen([ESPALIER, *arguments], stdout=child_end, stderr=child_end, env=environment)
    os.close(child_end)
    text = b""
    while True:
        try:
            piece = os.read(parent_end, 4096)
        except OSError:
            break
        if not piece:
            break
        text += piece
    process.wait(30)
    os.close(parent_end)
    return text.decode()


class Help(unittest.TestCase):
    def test_every_command_has_help_that_fits_a_screen(self):
        for command in COMMANDS:
            answer = run(*command, "--help")
            self.assertEqual(answer.returncode, 0, command)
            self.assertLessEqual(len(answer.stdout.splitlines()), 50, command)
            self.assertLessEqual(max(map(len, answer.stdout.splitlines())), 120, command)
            self.assertIn("Usage: " + " ".join(["espalier", *command]), answer.stdout)

    def test_internal_commands_are_hidden(self):
        self.assertNotIn("bench-rank", run("--help").stdout)
        self.assertNotIn("bench-rank", run("completion", "bash").stdout)

    def test_no_command_shows_help(self):
        answer = run()
        self.assertEqual(answer.returncode, 0)
        self.assertIn("Subcommands:", answer.stdout)

    def test_command_without_subcommand_shows_help(self):
        for command in ("bench", "data", "plan", "tokenizer", "import"):
            answer = run(command)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn(f"Usage: espalier {command} ", answer.stdout)

    def test_help_columns_are_aligned(self):
        for words in (["plan", "search"], ["metrics"]):
            said = run(*words, "--help").stdout
            self.assertNotIn("… ...", said)
        rows = run("launch", "--help").stdout.splitlines()
        at = next(i for i, row in enumerate(rows) if "--master-port" in row)
        self.assertIn("port of --rdzv-endpoint", rows[at] + rows[at + 1])

    def test_lab_without_name_lists_experiments(self):
        answer = run("lab")
        self.assertEqual(answer.returncode, 0)
        self.assertRegex(answer.stdout, r"(?m)^ *allreduce ")

    def test_arguments_after_command_belong_to_launched_program(self):
        done = run("launch", "--standalone", "/bin/echo", "--standalone", "said")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--standalone said", done.stdout + done.stderr)
        self.assertEqual(run("man", "--markdown", "train").returncode, 2)


class Version(unittest.TestCase):
    def test_prints_version_and_detected_libraries(self):
        answer = run("--version")
        self.assertEqual(answer.returncode, 0)
        self.assertRegex(answer.stdout, r"(?m)^espalier \d+\.\d+\.\d+ \([0-9a-f]{12}|unknown, ")
        for line in ["CPU:", "Open MPI:", "MPICH:", "NCCL:", "CUDA:"]:
            self.assertIn("\n" + line, answer.stdout)


class Colours(unittest.TestCase):
    def test_colours_on_terminal_only(self):
        self.assertIn("\033[", on_terminal("doctor"))
        self.assertNotIn("\033[", run("doctor").stdout)

    def test_no_colours_with_no_color(self):
        self.assertNotIn("\033[", on_terminal("doctor", env={"NO_COLOR": "1"}))
        self.assertNotIn("\033[", on_terminal("nonsense", env={"NO_COLOR": "1"}))

    def test_errors_are_plain_in_a_pipe(self):
        self.assertIn("\033[31m", on_terminal("nonsense"))
        self.assertNotIn("\033[", run("nonsense").stderr)


class JsonToStdout(unittest.TestCase):
    def test_stdout_contains_only_json_when_json_goes_to_stdout(self):
        plan = ["--model", "gpt3-1.3b", "--cluster", "selene", "--gpus", "8", "--global-batch", "8"]
        with tempfile.TemporaryDirectory() as folder:
            for words in (["plan", "estimate", *plan], ["plan", "simulate", *plan], ["lab", "numbers"],
                          ["bench", "comm", "--nproc", "2", "-b", "1K", "-n", "1", "-w", "0"],
                          ["bench", "kernel", "activation", "--seconds", "0.001"],
                          ["bench", "offload", "--elements", "4096", "--rounds", "1", "--folder", folder]):
                for flag in (["--json", "-"], ["--json=-"]):
                    answer = run(*words, *flag)
                    self.assertEqual(answer.returncode, 0, answer.stderr)
                    self.assertTrue(json.loads(answer.stdout), words)


class Errors(unittest.TestCase):
    def refused(self, code, words, *arguments):
        answer = run(*arguments)
        self.assertEqual(answer.returncode, code, answer.stderr)
        self.assertEqual(answer.stdout, "", arguments)
        self.assertEqual(len(answer.stderr.splitlines()), 1, answer.stderr)
        for word in words:
            self.assertIn(word, answer.stderr)

    def test_unknown_names_suggest_the_nearest(self):
        answer = run("train", "--nprocs", "2")
        self.assertEqual(answer.stderr, "espalier: --nprocs: unknown option of espalier train; did you mean --nproc? See "
                                        "espalier train --help\n")
        self.refused(2, ['"benhc"', 'did you mean "bench"'], "benhc")
        self.refused(2, ['"cmom"', 'did you mean "comm"'], "bench", "cmom")
        self.refused(2, ["--ngpu", "did you mean --ngpus"], "bench", "comm", "--ngpu", "2")
        self.refused(2, ['"alreduce"', 'did you mean "allreduce"'], "lab", "alreduce")
        self.refused(2, ['"al_reduce"', 'did you mean "all_reduce"'], "bench", "comm", "al_reduce")
        self.refused(2, ['"smh"', 'did you mean "shm"'], "bench", "comm", "--transport", "smh")
        self.refused(2, ['"rnig"', 'did you mean "ring"'], "bench", "comm", "--algo", "rnig")
        self.refused(2, ['"flaot"', "float"], "bench", "comm", "-d", "flaot")
        self.refused(2, ['"smu"', "sum"], "bench", "comm", "-o", "smu")
        self.refused(2, ['"openmp"', 'did you mean "openmpi"'], "bench", "comm", "--peers", "openmp")
        self.refused(2, ['"tcsh"', "bash, zsh, fish"], "completion", "tcsh")

    def test_rejects_invalid_arguments(self):
        self.refused(2, ['"3Q"', "64K"], "bench", "comm", "-b", "3Q")
        self.refused(2, ["-e: got 1K", "-b = 1M"], "bench", "comm", "-b", "1M", "-e", "1K")
        self.refused(2, ["factor"], "bench", "comm", "-b", "1", "-e", "8", "-f", "1")
        self.refused(2, ["--stepfactor", "0"], "bench", "comm", "-f", "0")
        self.refused(2, ["--max-restarts", "-1"], "launch", "--max-restarts", "-1", "--", "train", "x.toml")
        self.refused(2, ["--nproc-per-node", "Leave it out"], "launch", "--", "train", "x.toml", "--nproc", "4")
        self.refused(2, ["--root: got 2", "0 to 1"], "bench", "comm", "--nproc", "2", "-r", "2")
        self.refused(2, ["--check: got 2; expected 0 or 1"], "bench", "comm", "--nproc", "2", "-c", "2")
        self.refused(2, ["--nproc", '"two"'], "bench", "comm", "--nproc", "two")
        self.refused(2, ["--nproc: got 0"], "bench", "comm", "--nproc", "0")
        self.refused(2, ["--tokens: got -5; must be >= 0"], "generate", "--checkpoint", "x", "--tokens", "-5")
        self.refused(2, ["--top-p: got 7; must be from 0 to 1"], "generate", "--checkpoint", "x", "--top-p", "7")
        self.refused(2, ["x"], "doctor", "x")
        self.refused(2, ["shell"], "completion")

        self.refused(2, ["--shape: got 3x2", "4"], "bench", "comm", "--nproc", "4", "--algo", "torus2d", "--shape", "3x2")
        self.refused(2, ['"mpi"', "auto, shm, tcp"], "bench", "comm", "--transport", "mpi")
        self.refused(2, ["--top", "-3"], "plan", "search", "--model", "gpt3-13b", "--cluster", "selene", "--top", "-3")
        self.refused(2, ["got 99999999999999999999; must be <= 9223372036854775807"], "plan", "estimate", "--model", "gpt3-13b",
                     "--cluster", "selene", "--global-batch", "99999999999999999999")

    def test_rejects_non_numbers_and_repeated_options(self):
        self.refused(2, ["--nproc: got x; expected an integer"], "train", "--nproc", "x", "a.toml")
        self.refused(2, ["--tokens: got 1.5; expected an integer"], "generate", "--checkpoint", "x", "--tokens", "1.5")
        self.refused(2, ["--vocab: got 100000000000; must be <= 2147483647"], "tokenizer", "train", "x", "--vocab", "100000000000", "-o", "y")
        self.refused(2, ["--temperature: got inf; expected a finite number"], "generate", "--checkpoint", "x", "--temperature", "inf")
        self.refused(2, ["--checkpoint: given more than once"], "generate", "--checkpoint", "x", "--checkpoint", "y")
        self.refused(2, ["--resume: got no value"], "train", "a.toml", "--resume")
        self.refused(2, ['--special ""'], "tokenizer", "train", "x", "--vocab", "300", "-o", "y", "--special", "")
        self.refused(2, ['--special "<a>"', "each once"], "tokenizer", "train", "x", "--vocab", "300", "-o", "y", "--special", "<a>", "<a>")
        self.refused(2, ["--min-count: got -5; must be > 0"], "tokenizer", "train", "x", "--vocab", "300", "-o", "y", "--min-count", "-5")

    def test_rejects_empty_paths(self):
        for words in (["generate", "--checkpoint", ""], ["eval", "--checkpoint", "", "--ids", "x"], ["convert", "", "x"],
                      ["convert", "x", ""]):
            self.refused(2, ["got an empty path"], *words)

    def test_rejects_run_files_that_are_not_toml(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder + "/text.txt").write_text("the quick brown fox. " * 40)
            answer = run("train", folder + "/text.txt")
            self.assertEqual(answer.returncode, 2)
            self.assertIn("Expected a run file (TOML)", answer.stderr)
            os.mkfifo(folder + "/pipe")
            self.refused(2, ["pipe: got a pipe; expected a run file"], "train", folder + "/pipe")
            self.refused(2, ["/dev/zero: got a device; expected a run file"], "train", "/dev/zero")
            pathlib.Path(folder + "/run.toml").write_text("[data]\ntrain = 'x'\n")
            self.refused(2, ["--cluster: has no effect without parallel.layout = auto"], "train", folder + "/run.toml", "--cluster", "selene")
            self.refused(2, ["--run: got " + folder, f"--run {folder}/run.toml"], "plan", "estimate", "--run", folder, "--cluster", "selene")
            self.refused(4, [f"--model: got {folder}, a folder without config.json", f"--run {folder}/run.toml"], "plan", "estimate",
                         "--model", folder, "--cluster", "selene")
            self.refused(4, ["got a run folder without a complete checkpoint"], "generate", "--checkpoint", folder)
            self.refused(4, ["text.txt is not JSON at byte 2: parse error at line 1"], "import", "deepspeed", folder + "/text.txt")
            pathlib.Path(folder + "/empty.json").write_text("")
            self.refused(4, ["empty.json is empty; expected JSON"], "import", "deepspeed", folder + "/empty.json")
            self.refused(2, [folder + "/text.txt:1:"], "import", "deepspeed", self.json_file(folder), "--base", folder + "/text.txt")

    def json_file(self, folder):
        pathlib.Path(folder + "/ds.json").write_text("{}")
        return folder + "/ds.json"

    def test_rejects_too_many_threads(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))  # limits the address space, which thread stacks use up

        with tempfile.TemporaryDirectory() as folder:
            answer = subprocess.run([ESPALIER, "bench", "offload", "--folder", folder, "--elements", "4096", "--rounds", "1",
                                     "--threads", "4096"], capture_output=True, text=True, timeout=60, preexec_fn=limit)
            self.assertEqual(answer.returncode, 2, answer.stderr)
            self.assertIn("threads: got 4096; only ", answer.stderr)

    def test_writes_to_pipe_or_device_file_without_replacing_it(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder + "/text.txt").write_text("the quick brown fox. " * 40)
            pipe = folder + "/pipe"
            os.mkfifo(pipe)
            held = os.open(pipe, os.O_RDWR)  # so that opening the pipe does not block
            answer = run("tokenizer", "train", folder + "/text.txt", "--vocab", "260", "-o", pipe)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
            self.assertTrue(os.read(held, 16).startswith(b'{"version"'))
            os.close(held)
            # /dev/stdout must remain a symbolic link.
            before = os.readlink("/dev/stdout")

            def restore():
                if not os.path.islink("/dev/stdout"):
                    os.remove("/dev/stdout")
                    os.symlink(before, "/dev/stdout")
            self.addCleanup(restore)
            with open(folder + "/out", "w") as out:
                answer = subprocess.run([ESPALIER, "plan", "estimate", "--model", "gpt2-124m", "--processor", "A100", "--gpus", "8", "--json",
                                         "/dev/stdout"], stdout=out, stderr=subprocess.PIPE, text=True, timeout=30)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertEqual(os.readlink("/dev/stdout"), before)
            self.assertIn('"parameters"', pathlib.Path(folder + "/out").read_text())
            answer = run("data", "prepare", folder + "/text.txt", "-o", pipe)
            self.assertEqual(answer.returncode, 4, answer.stdout)
            self.assertIn("a device or pipe; expected a file", answer.stderr)

    def test_missing_files_and_folders_exit_with_4(self):
        for words in (["report"], ["dash"], ["metrics"], ["flight"], ["convert"], ["generate", "--checkpoint"],
                      ["tokenizer", "encode", "--tokenizer"], ["plan", "validate", "--rows"]):
            more = ["/nowhere/else"] if words[0] == "convert" else []
            self.refused(4, ["/nowhere/at-all"], *words, "/nowhere/at-all", *more)

    def test_empty_files_exit_with_4(self):
        with tempfile.TemporaryDirectory() as folder:
            rows = folder + "/empty.csv"
            open(rows, "w").close()
            self.refused(4, ["empty.csv", "no rows"], "plan", "validate", "--rows", rows)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_reports_unreadable_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            shut = folder + "/shut"
            os.makedirs(shut + "/run")
            os.chmod(shut, 0o700)
            other = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", ESPALIER]
            for words in (["convert", shut + "/run", folder + "/new"], ["generate", "--checkpoint", shut + "/run"],
                          ["report", shut], ["report", shut + "/run"]):
                answer = subprocess.run([*other, *words], capture_output=True, text=True, timeout=30)
                self.assertEqual(answer.returncode, 4, answer.stderr)
                self.assertIn("Permission denied", answer.stderr)
                self.assertNotIn("filesystem error", answer.stderr)

    def test_comparison_report_does_not_overwrite_run_report(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a", "b"):
                os.mkdir(f"{folder}/{name}")
                pathlib.Path(f"{folder}/{name}/run.toml").write_text("[run]\nname = 'x'\n")
            self.assertEqual(run("report", folder + "/a").stdout, folder + "/a/report.html\n")
            self.assertEqual(run("report", folder + "/a", folder + "/b").stdout, folder + "/a/comparison.html\n")

    def test_full_stdout_exits_with_4(self):
        for words in (["--help"], ["man", "--markdown"], ["completion", "bash"], ["plan", "estimate", "--list"],
                      ["plan", "estimate", "--model", "gpt3-13b", "--cluster", "selene", "--gpus", "64", "--json", "-"]):
            with open("/dev/full", "w") as full:
                answer = subprocess.run([ESPALIER, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
            self.assertEqual(answer.returncode, 4, words)
            self.assertIn("stdout: No space left", answer.stderr)

    def test_reports_why_gpu_cannot_be_used(self):
        if "cuda:0" in run("doctor").stdout:
            self.skipTest("this machine has a GPU")
        with tempfile.TemporaryDirectory() as folder:
            train = ["train", str(pathlib.Path(__file__).parents[2] / "configs/quickstart.toml"), "--run-dir", folder]
            self.refused(2, ["cuda:0 cannot be used:"], *train, "--set", "run.device=cuda")
            self.refused(2, ["tf32", "run.device"], *train, "--set", "train.precision=tf32")

    def test_unwritable_file_exits_with_4(self):
        answer = run("bench", "comm", "--nproc", "2", "-b", "1K", "-n", "1", "--json", "/nonexistent/folder/rows.json")
        self.assertEqual(answer.returncode, 4)
        self.assertIn("/nonexistent/folder/rows.json", answer.stderr)


class Doctor(unittest.TestCase):
    def test_lines_have_marks_and_advice(self):
        answer = run("doctor")
        self.assertEqual(answer.returncode, 0, answer.stdout)
        lines = answer.stdout.splitlines()
        self.assertTrue(all(line[0] in "✓!✗ " for line in lines), lines)
        for subject in ["cores", "caches", "core-to-core latency", "memory", "shared memory", "transports", "MPI plug-ins", "Open MPI", "MPICH",
                        "NCCL", "GPU driver", "congestion control", "limits"]:
            self.assertIn(subject, answer.stdout)
        for i, line in enumerate(lines):
            if line[0] in "!✗":
                self.assertTrue(i + 1 < len(lines) and lines[i + 1].startswith("   "), f"no advice after: {line}")

    def test_json_lists_findings_with_states(self):
        answer = run("doctor", "--json")
        report = json.loads(answer.stdout)
        self.assertTrue(report["healthy"])
        self.assertIn("transports", [finding["name"] for finding in report["findings"]])
        self.assertTrue(all(finding["state"] in ("good", "absent", "care", "broken") for finding in report["findings"]))

    def test_unmet_requirement_exits_with_2(self):
        # In a new network namespace the loopback interface is down.
        unshare = shutil.which("unshare")
        if not unshare or subprocess.run([unshare, "-n", "true"], capture_output=True).returncode != 0:
            self.skipTest("network namespaces are not permitted here")
        answer = subprocess.run([unshare, "-n", ESPALIER, "doctor"], capture_output=True, text=True, timeout=30)
        self.assertEqual(answer.returncode, 2, answer.stdout)
        self.assertRegex(answer.stdout, r"✗ loopback")
        self.assertIn("ip link set lo up", answer.stdout)


if __name__ == "__main__":
    unittest.main()
