"""Parses documentation pages: code blocks, headings, links.

The convention of every page, which docs_test.py checks:

  ```sh run                    commands that ./check executes, page by page, in one scratch folder per page
  ```sh long                   the same, but only with ./check --long
  ```sh elsewhere: REASON      commands that cannot run here (several hosts, a GPU, root, a cluster's scheduler)
  ```LANGUAGE                  anything else: text, toml, c, cpp, json, python …

A comment directly before a block may contain a short form, which is run instead. It uses the same subcommands:

  <!-- short
  espalier bench comm --nproc 2 -b 1K -e 4K
  -->

`<!-- exit 2 -->` before a block: its last command ends with exit code 2. Code is always fenced.
"""
import os
import re
import shlex

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))


class Block:
    def __init__(self, page, line, info, text):
        self.page, self.line, self.info, self.text = page, line, info, text
        self.short, self.exit_code = None, 0

    @property
    def language(self):
        return self.info.split(" ", 1)[0]

    @property
    def kind(self):
        """Class of a block: run, long or elsewhere for shell; text for others; empty: not classified."""
        if self.language not in ("sh", "bash", "shell", "console"):
            return "text" if self.language else ""
        rest = self.info.split(" ", 1)[1].strip() if " " in self.info else ""
        if rest in ("run", "long"):
            return rest
        if rest.startswith("elsewhere:") and len(rest) > len("elsewhere: ") + 5:
            return "elsewhere"
        return ""

    @property
    def where(self):
        return f"{self.page}:{self.line}"

    def commands(self):
        """Commands as words: continued lines joined, comments and prompts removed, pipes split."""
        text = re.sub(r"<<'?(\w+)'?[^\n]*\n.*?\n\1(?=\n|$)", "", self.text, flags=re.S)  # removes here-documents
        joined = re.sub(r"\\\n\s*", " ", text)
        found = []
        for line in joined.splitlines():
            try:
                lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&()<>")
                lexer.whitespace_split = True
                words = list(lexer)
            except ValueError:
                continue  # a quoted text that spans several lines
            current = []
            for word in words + [";"]:
                if set(word) <= set("|;&"):
                    if current:
                        found.append(current)
                    current = []
                else:
                    current.append(word)
        return found


class Page:
    def __init__(self, path):
        self.path = path  # from the root
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            self.lines = file.read().split("\n")
        self.blocks, self.indented, self.headings, self.links = [], [], [], []
        self._read()

    def _read(self):
        i, comment, in_list = 0, None, False
        while i < len(self.lines):
            line = self.lines[i]
            fence = re.match(r"(\s*)(```+|~~~+)(.*)$", line)
            if fence:
                end = i + 1
                while end < len(self.lines) and not self.lines[end].strip().startswith(fence.group(2)):
                    end += 1
                text = "\n".join(one[len(fence.group(1)):] for one in self.lines[i + 1:end])
                block = Block(self.path, i + 1, fence.group(3).strip(), text)
                if comment and comment.startswith("short"):
                    block.short = comment[len("short"):].strip("\n")
                if comment and comment.startswith("exit"):
                    block.exit_code = int(comment.split()[1])
                self.blocks.append(block)
                comment, i = None, end + 1
                continue
            if line.startswith("<!--"):
                end = i
                while "-->" not in self.lines[end]:
                    end += 1
                comment = "\n".join(self.lines[i:end + 1])[4:].split("-->")[0].strip(" ")
                comment = comment.strip()
                i = end + 1
                continue
            if line.strip():
                comment = None
            if re.match(r"\s*([*+-]|\d+[.)])\s", line):
                in_list = True
            elif line.strip() and not line.startswith(" "):
                in_list = False
            before = self.lines[i - 1].strip() if i else ""
            if line.startswith("    ") and not before and not in_list:
                self.indented.append(i + 1)
            heading = re.match(r"(#+)\s+(.*)$", line)
            if heading:
                self.headings.append(heading.group(2))
            bare = re.sub(r"`[^`]*`", "", line)
            for target in re.findall(r"\]\(([^)\s]+)\)", bare):
                self.links.append((i + 1, target))
            for target in re.findall(r"(?:src|href)=\"([^\"]+)\"", bare):
                self.links.append((i + 1, target))
            i += 1

    def anchors(self):
        """Heading anchors as generated by GitHub."""
        seen, names = {}, set()
        for heading in self.headings:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = seen.get(name, 0)
            seen[name] = count + 1
            names.add(name if count == 0 else f"{name}-{count}")
        return names


def pages():
    """All documentation pages: the root, docs/, examples/, and pages next to code."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(one for one in folders
                            if not one.startswith((".", "build", "runs", "lab")) and one not in ("node_modules", "out"))
        for name in sorted(files):
            if name.endswith(".md"):
                found.append(os.path.relpath(os.path.join(folder, name), ROOT))
    return [Page(path) for path in found]
