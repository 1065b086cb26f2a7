#!/usr/bin/env python3
"""Checks that the documentation speaks of things that are there.

    scripts/check_docs.py [--root DIR] [--binary build/dev/halfbyte [--run]]

In every Markdown file of the project (tests/golden/*/ keep the words of their makers and are left
out), each of these must exist:
- a relative link's file and, after '#', its heading;
- a path in backticks: one that starts with a folder of the root (`src/moe/cpu/`), or ends as
  source code does;
- in ```sh blocks and after `$ ` in ```console blocks: a script that is called by its path, with
  each long option standing in the script's text; a preset of `cmake` and `ctest`; every argument
  that starts with a folder of the root; and, with --binary, each subcommand and long option of
  `halfbyte` in that binary's own --help.
With --run, each `halfbyte` command of README.md's ```console blocks is run too, in the order of the
page, and must succeed; a block ```console slow is left out. They see the checkout through links and
write into a folder that vanishes.
Prints one line a fault; exit status 1 if there are any.
Checked by tests/scripts/test_check_docs.py.
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^(```+)\s*(\w*)\s*(\w*)")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`]+)`")
SOURCE = re.compile(r"\.(h|cpp|cu|cuh|py|md|cmake)$")
# What a checkout makes: named in the documents, and absent from a clean clone.
MADE = ("build", ".venv")


def markdown_files(root):
    for path in sorted(root.rglob("*.md")):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") or part.startswith("build") for part in parts[:-1])
        if not hidden and not (parts[:2] == ("tests", "golden") and len(parts) > 3):
            yield path


def anchor_of(heading):
    """The anchor that GitHub gives to a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors_of(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return {anchor_of(line.lstrip("#")) for line in lines if line.startswith("#")}


class Docs:
    def __init__(self, root, binary=None):
        self.root = root
        self.binary = binary
        self.faults = []
        self.top_names = {path.name for path in root.iterdir()} | set(MADE)
        self.help_texts = {}
        self.to_run = []  # (file, line, command)

    def fail(self, path, line, message):
        self.faults.append(f"{path.relative_to(self.root)}:{line}: {message}")

    def exists(self, name):
        """Whether a path relative to the root is there; patterns with * or <> match loosely."""
        name = name.rstrip("/")
        if name.split("/")[0] in MADE:
            return True
        if re.search(r"[*<>{}]|\bNAME\b|\bDIR\b|\.\.\.", name):
            pattern = re.sub(r"<[^>]*>|\{[^}]*\}|\bNAME\b|\bDIR\b|\.\.\.", "*", name)
            return any(True for _ in self.root.glob(pattern))
        return (self.root / name).exists()

    def looks_like_path(self, text):
        first = text.split("/")[0]
        if not re.fullmatch(r"[\w.\-/*<>{},]+", text):
            return False
        if text.startswith("./"):
            return True
        return "/" in text and (first in self.top_names or SOURCE.search(text) is not None)

    # -- prose --

    def check_link(self, path, line, target):
        if re.match(r"[a-z]+:", target):
            return
        name, _, anchor = target.partition("#")
        linked = (path.parent / name) if name else path
        if not linked.exists():
            self.fail(path, line, f"link to {target}: no such file")
        elif anchor and linked.suffix == ".md" and anchor not in anchors_of(linked):
            self.fail(path, line, f"link to {target}: no such heading")

    def check_prose(self, path, line, text):
        for match in LINK.finditer(text):
            self.check_link(path, line, match.group(1))
        for match in CODE.finditer(text):
            words = match.group(1).split()
            if len(words) > 1 and (words[0].startswith("./") or words[0] in ("halfbyte", "ctest")):
                self.check_command(path, line, match.group(1))
            elif len(words) == 1 and self.looks_like_path(words[0]):
                name = words[0][2:] if words[0].startswith("./") else words[0]
                beside = (path.parent / name).exists()
                if not beside and not self.exists(name):
                    self.fail(path, line, f"`{words[0]}`: no such file")

    # -- commands --

    def help_of(self, command):
        """The --help text of `halfbyte COMMAND...`; None if there is no such subcommand."""
        if command not in self.help_texts:
            done = subprocess.run([self.binary, *command, "--help"], capture_output=True, text=True,
                                  check=False)
            self.help_texts[command] = done.stdout if done.returncode == 0 else None
        return self.help_texts[command]

    def check_halfbyte(self, path, line, arguments):
        if self.binary is None:
            return
        command = ()
        if arguments and not arguments[0].startswith("-"):
            command = (arguments[0],)
            if self.help_of(command) is None:
                self.fail(path, line, f"halfbyte has no subcommand {arguments[0]}")
                return
            if len(arguments) > 1 and re.fullmatch(r"[a-z]+", arguments[1]):
                deeper = command + (arguments[1],)
                command = deeper if self.help_of(deeper) else command
        for argument in arguments:
            option = argument.partition("=")[0]
            if option.startswith("--"):
                if not re.search(re.escape(option) + r"(?![\w-])", self.help_of(command) or ""):
                    self.fail(path, line, f"halfbyte {' '.join(command)} has no option {option}")

    def check_preset(self, path, line, words):
        file = self.root / "CMakePresets.json"
        presets = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        names = {preset["name"] for kind in presets.values() if isinstance(kind, list)
                 for preset in kind if not preset.get("hidden")}
        for option, value in zip(words, words[1:]):
            if option == "--preset" and value not in names:
                self.fail(path, line, f"CMakePresets.json has no preset {value}")

    def check_script(self, path, line, program, arguments):
        script = self.root / program
        if not script.is_file():
            self.fail(path, line, f"{program}: no such file")
            return
        text = script.read_text(encoding="utf-8", errors="replace")
        for argument in arguments:
            option = argument.partition("=")[0]
            if option.startswith("--") and option not in text:
                self.fail(path, line, f"{program} has no option {option}")

    def check_command(self, path, line, command):
        command = re.split(r"\s(?:\||>|&&|;)\s", command)[0]
        try:
            words = shlex.split(command, comments=True)
        except ValueError as error:
            self.fail(path, line, f"not a shell command: {error}")
            return
        while words and re.fullmatch(r"\w+=\S*", words[0]):
            words.pop(0)
        if not words:
            return
        program, arguments = words[0], words[1:]
        name = program[2:] if program.startswith("./") else program
        if pathlib.PurePath(name).name == "halfbyte":
            self.check_halfbyte(path, line, arguments)
        elif program in ("cmake", "ctest"):
            self.check_preset(path, line, arguments)
        elif "/" in program and name.split("/")[0] not in MADE:
            self.check_script(path, line, name, arguments)
        for argument in arguments:
            value = argument.partition("=")[2] if argument.startswith("-") else argument
            if value and self.looks_like_path(value) and not self.exists(value.removeprefix("./")):
                self.fail(path, line, f"{value}: no such file")

    # -- files --

    def check_file(self, path):
        fence, kind, note, pending = None, "", "", ""
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = FENCE.match(text)
            if match and (fence is None or text.strip() == fence):
                fence, kind, note = match.groups() if fence is None else (None, "", "")
                continue
            if fence is None:
                self.check_prose(path, line, text)
                continue
            if kind == "sh" or (kind == "console" and (text.startswith("$ ") or pending)):
                command = pending + text.removeprefix("$ ")
                if command.endswith("\\"):
                    pending = command[:-1]
                    continue
                pending = ""
                self.check_command(path, line, command)
                if kind == "console" and note != "slow":
                    self.to_run.append((path, line, command))

    def run_commands(self, page):
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            for entry in self.root.iterdir():
                if entry.name not in MADE:
                    (place / entry.name).symlink_to(entry.resolve())
            (place / "build" / "release").mkdir(parents=True)
            (place / "build" / "release" / "halfbyte").symlink_to(pathlib.Path(self.binary).resolve())
            for path, line, command in self.to_run:
                if path != page or not command.startswith("build/release/halfbyte "):
                    continue
                done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=place,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      check=False)
                if done.returncode != 0:
                    message = (done.stderr.strip().splitlines() or ["no message"])[-1]
                    self.fail(path, line, f"exit status {done.returncode}: {message}")


def find_faults(root, binary=None, run=False):
    docs = Docs(pathlib.Path(root), binary)
    for path in markdown_files(docs.root):
        docs.check_file(path)
    if run:
        docs.run_commands(docs.root / "README.md")
    return docs.faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=pathlib.Path(__file__).parents[1], type=pathlib.Path)
    parser.add_argument("--binary", help="a built halfbyte, whose --help is asked")
    parser.add_argument("--run", action="store_true", help="run README.md's commands too")
    arguments = parser.parse_args()
    if arguments.run and not arguments.binary:
        parser.error("--run needs --binary")
    faults = find_faults(arguments.root, arguments.binary, arguments.run)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
