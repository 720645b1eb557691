"""Tests the documentation: links resolve, code blocks are classified, and their commands exist. Commands that can run
here are run. Generated pages must equal the program's output, and help must fit a screen.

By hand:  ESPALIER=build/bin/espalier python3 tests/docs/docs_test.py -v Commands       (--long: ESPALIER_TEST_LONG=1)
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from pages import ROOT, Block, pages

ESPALIER = os.path.realpath(os.environ.get("ESPALIER", os.path.join(ROOT, "build/bin/espalier")))
LONG = bool(os.environ.get("ESPALIER_TEST_LONG"))
LIMIT_S = 1800 if LONG else 120  # time limit of one block
TINY = os.path.join(ROOT, "tests/docs/tiny.toml")


def espalier(*arguments, limit=60):
    return subprocess.run([ESPALIER, *arguments], capture_output=True, text=True, timeout=limit)


class Links(unittest.TestCase):
    def test_every_link_resolves(self):
        all_pages = {page.path: page for page in pages()}
        dead, checked, outside = [], 0, 0
        for page in all_pages.values():
            for line, target in page.links:
                if re.match(r"[a-z]+:", target):
                    outside += 1
                    continue
                checked += 1
                path, _, anchor = target.partition("#")
                full = os.path.normpath(os.path.join(os.path.dirname(page.path), path)) if path else page.path
                if not os.path.exists(os.path.join(ROOT, full)):
                    dead.append(f"{page.path}:{line}: {target} does not exist")
                elif anchor and full in all_pages and anchor not in all_pages[full].anchors():
                    dead.append(f"{page.path}:{line}: {full} has no heading #{anchor}")
        print(f"{checked} links checked in {len(all_pages)} pages, {outside} external links", file=sys.stderr)
        self.assertEqual(dead, [])

    def test_every_page_of_docs_is_in_the_index(self):
        with open(os.path.join(ROOT, "docs/README.md"), encoding="utf-8") as file:
            index = file.read()
        missing = [page.path for page in pages()
                   if page.path.startswith("docs/") and page.path != "docs/README.md"
                   and f"({page.path[len('docs/'):]})" not in index]
        self.assertEqual(missing, [])


class Blocks(unittest.TestCase):
    """Static checks; runs no commands."""

    def test_every_block_is_classified(self):
        wrong, counts = [], {}
        for page in pages():
            wrong += [f"{page.path}:{line}: indented code; use a fenced block" for line in page.indented]
            for block in page.blocks:
                if not block.kind:
                    wrong.append(f"{block.where}: ```{block.info} has no language, or no class (run, long, elsewhere: REASON)")
                counts[block.kind] = counts.get(block.kind, 0) + 1
        print(f"code blocks: {counts}", file=sys.stderr)
        self.assertEqual(wrong, [])

    def test_every_command_is_known(self):
        """Subcommands and options exist, also in blocks that are not run."""
        known = options_by_command()
        wrong, checked = [], 0
        for block in all_blocks():
            if block.kind in ("", "text"):
                continue
            for words in block.commands():
                checked += 1
                wrong += [f"{block.where}: {one}" for one in unknown_words(words, known)]
        print(f"{checked} commands checked against the option table", file=sys.stderr)
        self.assertEqual(wrong, [])

    def test_short_form_of_block_uses_the_same_commands(self):
        wrong, known = [], options_by_command()
        for page in pages():
            for block in page.blocks:
                if block.short is None:
                    continue
                whole = {subcommand(words, known) for words in block.commands()} - {""}
                text, block.text = block.text, block.short
                short = {subcommand(words, known) for words in block.commands()} - {""}
                block.text = text
                if not whole <= short:
                    wrong.append(f"{block.where}: shows {sorted(whole)}, but its short form runs only {sorted(short)}")
        self.assertEqual(wrong, [])

    def test_every_training_run_has_separate_folder(self):
        """Over all pages, ./quickstart and configs/, in any order: a second run in a folder would find the first one finished,
        or be rejected for its other run file. Commands that resume on purpose are marked; several hosts run one job."""
        wrong, checked, seen = [], 0, {}
        for block in all_blocks():
            if block.kind in ("", "text"):
                continue
            for words in block.commands():
                folder = run_folder(words)
                if not folder:
                    continue
                checked += 1
                resumes = [one for one in words if one.startswith(("train.steps=", "--resume"))]
                host = words[words.index("--node-rank") + 1] if "--node-rank" in words else ""
                if folder in seen:
                    where, resumed, other_host = seen[folder]
                    same_job = block.where == where and host != other_host
                    if not same_job and (not resumes or resumes == resumed):
                        wrong.append(f"{block.where}: {' '.join(words)}\n    trains in {folder}, as {where} does")
                seen[folder] = (block.where, resumes, host)
        print(f"{checked} training runs checked", file=sys.stderr)
        self.assertFalse(wrong, "\n".join(wrong))

    def test_commands_in_config_comments_are_complete(self):
        """Options alone would be added to the command before them, whose run folder is in use."""
        commands = 0
        for block in config_blocks():
            commands += sum(bool(run_folder(words)) for words in block.commands())
            with open(os.path.join(ROOT, block.page), encoding="utf-8") as file:
                prose = re.sub(r"^#   .*\n", "", file.read(), flags=re.M)
            self.assertNotRegex(prose, r"(?m)^#.* --\w", block.page)
        self.assertGreaterEqual(commands, len(os.listdir(os.path.join(ROOT, "configs"))))
        self.assertTrue(any(run_folder(words) for words in quickstart_blocks()[1].commands()))


def all_blocks():
    """The blocks of all pages, and the commands of ./quickstart and of the comments in configs/."""
    return quickstart_blocks() + config_blocks() + [block for page in pages() for block in page.blocks]


def quickstart_blocks():
    """./quickstart: the commands it runs, and those it prints."""
    with open(os.path.join(ROOT, "quickstart"), encoding="utf-8") as file:
        text = file.read()
    folder = re.search(r"^run=(\S+)$", text, re.M).group(1)
    for name, value in (("bin", "espalier"), ("run", folder)):
        text = text.replace(f'"${name}"', value).replace(f"${name}", value)
    printed = "\n".join(re.findall(r'^echo "(.*)"$', text, re.M))
    return [Block("quickstart", 1, "sh run", text), Block("quickstart (printed)", 1, "sh elsewhere: not run", printed)]


def config_blocks():
    """The commands in the comments of each run file: lines that begin with "#   "."""
    blocks = []
    for name in sorted(os.listdir(os.path.join(ROOT, "configs"))):
        with open(os.path.join(ROOT, "configs", name), encoding="utf-8") as file:
            commands = "\n".join(re.findall(r"^#   (.*)$", file.read(), re.M))
        blocks.append(Block(f"configs/{name}", 1, "sh elsewhere: not run", commands))
    return blocks


def run_folder(words):
    """The run folder of a training command: its --run-dir or run.dir; else runs/ and the run.name of the command or of
    its run file. Empty for other commands."""
    ours = of_ours(words)
    if "train" not in ours[1:] or (ours[1] != "train" and ours[1] != "launch"):
        return ""
    rest = ours[ours.index("train") + 1:]
    for one, value in zip(rest, rest[1:] + [""]):
        if one == "--keys":
            return ""
        if one == "--run-dir":
            return value
        if one.startswith("run.dir="):
            return one.split("=", 1)[1]
        if one.startswith("run.name="):
            return "runs/" + one.split("=", 1)[1]
    return next((folder_of_run_file(one) for one in rest if one.endswith(".toml")), "")


def folder_of_run_file(path):
    """The default run folder: runs/ and the run.name in the file. If the file is not in the repository or has no run.name,
    the file's own name is used."""
    name = os.path.splitext(os.path.basename(path))[0]
    if os.path.exists(os.path.join(ROOT, path)):
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            named = re.search(r"^\[run\]\n(?:[^\[]*\n)?name = \"(.*)\"", file.read(), re.M)
        name = named.group(1) if named else name
    return "runs/" + name


def options_by_command():
    """{"espalier plan search": {"--model", …}} from the manual pages."""
    known = {}
    with tempfile.TemporaryDirectory() as folder:
        espalier("man", "--out", folder)
        for name in os.listdir(os.path.join(folder, "man1")):
            with open(os.path.join(folder, "man1", name), encoding="utf-8") as file:
                options = file.read().split(".SH OPTIONS")[1].split(".SH COMMANDS")[0].replace("\\-", "-")
            known[name[:-len(".1")].replace("-", " ")] = {"--help", "-h"} | set(re.findall(r"\\fB(--?[^\\]+)\\fR", options))
    return known


def of_ours(words):
    """The words of an espalier command without the words before it; empty if it is not an espalier command."""
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    if words and words[0] == "timeout":
        words = words[1:]
        while words and (words[0].startswith("-") or words[0][0].isdigit() or words[0].isupper()):
            words = words[1:]
    if words and words[0] in ("sudo", "time", "exec", "nohup"):
        words = words[1:]
    if words and words[0].split("/")[-1] == "espalier":
        return ["espalier"] + words[1:]
    return []


def subcommand(words, known):
    path = "espalier" if of_ours(words) else ""
    for word in of_ours(words)[1:]:
        if f"{path} {word}" not in known:
            break
        path = f"{path} {word}"
    return path


def unknown_words(words, known):
    ours = of_ours(words)
    if not ours:
        return []
    path = "espalier"
    rest = ours[1:]
    while rest and f"{path} {rest[0]}" in known:
        path, rest = f"{path} {rest[0]}", rest[1:]
    if path == "espalier" and rest and not rest[0].startswith("-"):
        return [f"espalier has no command {rest[0]}"]
    if path == "espalier launch":  # the launched program may be an espalier command with its own options
        behind = next((i for i, word in enumerate(rest) if word == "--" or not word.startswith("-") and i and
                       not rest[i - 1].startswith("--")), len(rest))
        started = [word for word in rest[behind:] if word != "--"]
        rest = rest[:behind]
        if started and f"espalier {started[0]}" in known:
            return unknown_words(["espalier"] + started, known) + unknown_words(ours[:2] + rest, known)
    return [f"{path} has no option {word}" for word in (one.split("=")[0] for one in rest)
            if re.match(r"--?[a-zA-Z]", word) and word not in known[path]]


class Scratch:
    """A temporary copy of the repository's root; files written by a block are deleted afterwards."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="espalier-docs-")
        for name in os.listdir(ROOT):
            if not name.startswith(("build", "runs", "lab", ".git")) and not name.endswith((".json", ".bin")):
                os.symlink(os.path.join(ROOT, name), os.path.join(self.path, name))
        os.makedirs(os.path.join(self.path, "build"))
        os.symlink(os.path.dirname(ESPALIER), os.path.join(self.path, "build/bin"))
        for name in ("RUN.toml", "run.toml"):
            shutil.copy(TINY, os.path.join(self.path, name))
        for folder in ("corpus", "text"):
            os.makedirs(os.path.join(self.path, folder))
            shutil.copy(os.path.join(ROOT, "docs/errors.md"), os.path.join(self.path, folder, "errors.txt"))
            shutil.copy(os.path.join(ROOT, "docs/gotchas.md"), os.path.join(self.path, folder, "gotchas.txt"))
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)

    def run(self, block):
        text = block.text if block.short is None else block.short
        environment = dict(os.environ, NO_COLOR="1", ESPALIER_LOG="warn")
        environment["PATH"] = os.path.dirname(ESPALIER) + ":" + environment["PATH"]
        begun = time.monotonic()
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=self.path, env=environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=LIMIT_S)
        return done, time.monotonic() - begun


class Commands(unittest.TestCase):
    def test_code_blocks_run(self):
        """A page is a session: its blocks run in order in one folder, after ./quickstart."""
        wanted = ("run", "long") if LONG else ("run",)
        failed, counts, seconds = [], {"run": 0, "long": 0, "elsewhere": 0}, 0
        only = os.environ.get("ESPALIER_DOCS_PAGE", "")
        quickstart = tempfile.mkdtemp(prefix="espalier-docs-")
        self.addCleanup(shutil.rmtree, quickstart)
        with Scratch() as scratch:
            done, _ = scratch.run(Block("quickstart", 1, "sh run", "espalier train configs/quickstart.toml --run-dir "
                                        "runs/quickstart --set train.steps=1 --set train.eval_every=0 "
                                        "--set train.eval_batches=1"))
            self.assertEqual(done.returncode, 0, done.stderr)
            shutil.move(os.path.join(scratch.path, "runs/quickstart"), quickstart)
        for page in pages():
            blocks = [block for block in page.blocks if block.kind in wanted]
            for block in page.blocks:
                if block.kind in counts:
                    counts[block.kind] += 1
            if not blocks or only not in page.path:
                continue
            with Scratch() as scratch:
                shutil.copytree(os.path.join(quickstart, "quickstart"), os.path.join(scratch.path, "runs/quickstart"))
                for block in blocks:
                    done, took = scratch.run(block)
                    seconds += took
                    print(f"{took:6.1f} s  {block.where}", file=sys.stderr)
                    if "nothing left to do" in done.stderr:
                        failed.append(f"{block.where} trains in the folder of a finished run\n{done.stderr[-1500:]}")
                    if done.returncode != block.exit_code:
                        failed.append(f"{block.where} ended with {done.returncode}\n{done.stdout[-800:]}{done.stderr[-1500:]}")
        print(f"{counts} blocks, executed {wanted} in {seconds:.0f} s", file=sys.stderr)
        self.assertFalse(failed, "\n".join(failed))


class Reference(unittest.TestCase):
    """Generated pages equal the program's output."""

    def same(self, path, *command):
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        answer = espalier(*command)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(text, answer.stdout, f"{path} is outdated: run espalier {' '.join(command)} > {path}")

    def test_command_reference_is_current(self):
        self.same("docs/commands.md", "man", "--markdown")

    def test_run_file_reference_is_current(self):
        self.same("docs/run_file.md", "train", "--keys")

    def test_lab_list_is_current(self):
        with open(os.path.join(ROOT, "docs/lab.md"), encoding="utf-8") as file:
            page = file.read()
        for name, help_line in re.findall(r"^  (\w+) +(.*)$", espalier("lab").stdout, re.M):
            self.assertIn(f"| `{name}` | {help_line} |", page)

    def test_manual_pages_have_every_section(self):
        with tempfile.TemporaryDirectory() as folder:
            answer = espalier("man", "--out", folder)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            names = sorted(os.listdir(os.path.join(folder, "man1")))
            self.assertIn("espalier.1", names)
            self.assertIn("espalier-plan-search.1", names)
            self.assertEqual(len(names), len(options_by_command()))
            self.assertEqual(os.listdir(os.path.join(folder, "man5")), ["espalier-run.5"])
            for name in names:
                with open(os.path.join(folder, "man1", name), encoding="utf-8") as file:
                    text = file.read()
                for section in (".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", ".SH EXIT STATUS"):
                    self.assertIn(section, text, name)
                if shutil.which("mandoc"):
                    lint = subprocess.run(["mandoc", "-Tlint", "-Werror", os.path.join(folder, "man1", name)],
                                          capture_output=True, text=True)
                    self.assertEqual(lint.returncode, 0, f"{name}: {lint.stdout}{lint.stderr}")

    def test_install_includes_manual_pages_and_completion(self):
        script = os.path.join(os.path.dirname(ESPALIER), "../apps/espalier/cmake_install.cmake")
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={folder}", "-P", script], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            for path in ("man/man1/espalier-train.1", "man/man5/espalier-run.5", "bash-completion/completions/espalier",
                         "zsh/site-functions/_espalier", "fish/vendor_completions.d/espalier.fish"):
                self.assertGreater(os.path.getsize(os.path.join(folder, "share", path)), 500, path)

    def test_prints_manual_page(self):
        for words, heading in ((["plan", "search"], "espalier\\-plan\\-search"), (["run"], "espalier\\-run"), ([], "espalier 1")):
            answer = espalier("man", *words)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertTrue(answer.stdout.startswith(f".TH {heading}"), answer.stdout[:80])

    def test_rejects_unknown_manual_page(self):
        answer = espalier("man", "trian")
        self.assertEqual(answer.returncode, 2)
        self.assertIn("trian", answer.stderr)


class Help(unittest.TestCase):
    def test_help_fits_screen(self):
        """At most 50 lines of 120 columns, for every command."""
        for command in options_by_command():
            answer = espalier(*command.split()[1:], "--help")
            self.assertEqual(answer.returncode, 0, command)
            lines = answer.stdout.rstrip("\n").split("\n")
            self.assertLessEqual(len(lines), 50, command)
            for line in lines:
                self.assertLessEqual(len(line), 120, f"{command}: {line}")


if __name__ == "__main__":
    unittest.main()
