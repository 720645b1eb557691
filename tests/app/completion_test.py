"""Tests the completion scripts in real shells."""
import shutil
import subprocess
import tempfile
import unittest

from cli_runner import run


def script(shell):
    file = tempfile.NamedTemporaryFile("w", suffix="." + shell)
    file.write(run("completion", shell).stdout)
    file.flush()
    return file


class Shell(unittest.TestCase):
    shell = None

    def setUp(self):
        if not self.shell:
            self.skipTest("base class")
        if not shutil.which(self.shell):
            self.skipTest(f"{self.shell} is not installed")
        self.file = script(self.shell)
        self.addCleanup(self.file.close)

    def ask(self, command):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
        self.assertEqual(answer.stderr, "")
        return [line.split("\t")[0] for line in answer.stdout.splitlines()]

    def complete(self, *words):
        raise NotImplementedError

    def check_everything(self):
        self.assertEqual(set(self.complete("")) & {"bench", "lab", "doctor", "completion"},
                         {"bench", "lab", "doctor", "completion"})
        self.assertNotIn("bench-rank", self.complete(""))
        self.assertIn("comm", self.complete("bench", ""))
        self.assertIn("--nproc", self.complete("bench", "comm", "--"))
        self.assertIn("all_reduce", self.complete("bench", "comm", ""))
        self.assertNotIn("--nproc", self.complete("doctor", "--"))
        self.assertIn("shm", self.complete("bench", "comm", "--transport", ""))
        self.assertEqual(set(self.complete("completion", "")) & {"bash", "zsh", "fish"}, {"bash", "zsh", "fish"})


class Bash(Shell):
    shell = "bash"

    def complete(self, *words):
        line = " ".join(f"'{word}'" for word in ("espalier", *words))
        return self.ask(["bash", "-c", f"source {self.file.name}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; "
                                       "_espalier; printf '%s\\n' \"${COMPREPLY[@]}\""])

    def test_completes_commands_options_and_values(self):
        self.check_everything()
        self.assertEqual(self.complete("bench", "comm", "--trans"), ["--transport"])


class Zsh(Shell):
    shell = "zsh"

    def complete(self, *words):
        line = " ".join(f"'{word}'" for word in ("espalier", *words))
        return self.ask(["zsh", "-fc", "compdef() {}; compadd() { shift; print -l -- \"$@\" }; "
                                       f"source {self.file.name}; words=({line}); CURRENT={len(words) + 1}; _espalier"])

    def test_completes_commands_options_and_values(self):
        self.check_everything()


class Fish(Shell):
    shell = "fish"

    def complete(self, *words):
        line = " ".join(("espalier", *words))
        return self.ask(["fish", "--no-config", "-c", f"source {self.file.name}; complete -C '{line}'"])

    def test_completes_commands_options_and_values(self):
        self.check_everything()


if __name__ == "__main__":
    unittest.main()
