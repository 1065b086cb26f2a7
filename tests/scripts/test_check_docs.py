"""scripts/check_docs.py finds planted faults, and nothing in sound documents."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
from check_docs import find_faults  # noqa: E402

# Stands for the binary: one subcommand, `run`, with one option; `bench moe` with another.
BINARY = """#!/bin/sh
case "$*" in
  "--help") echo "--version" ;;
  "run --help") echo "  --model-path TEXT" ;;
  "bench --help") echo "moe" ;;
  "bench moe --help") echo "  --tokens" ;;
  "run --model-path src/base") cat src/base/file.h && touch made ;;
  *) exit 1 ;;
esac
"""

SOUND = """# Title

## A heading: with `code`

See [the page](docs/page.md), [its part](docs/page.md#second-part), [here](#a-heading-with-code),
`src/base/`, `src/*/file.h`, `docs/page.md`, `build/dev/halfbyte`, `a/b` and `./check asan`.

```sh
./check --help      # a comment
cmake --preset dev
build/dev/halfbyte run --model-path=src/base
```

```console
$ HB=1 build/dev/halfbyte bench moe \\
    --tokens 1 | head
any/output.h
```

```
no/command.h --here
```
"""


class CheckDocs(unittest.TestCase):
    def faults_with(self, readme, run=False):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in ("src/base", "docs", "tests/golden/case"):
                (root / name).mkdir(parents=True)
            (root / "src/base/file.h").touch()
            (root / "check").write_text("--help asan", encoding="utf-8")
            (root / "docs/page.md").write_text("# Page\n\n## Second part\n", encoding="utf-8")
            (root / "tests/golden/case/README.md").write_text("[x](gone.md)", encoding="utf-8")
            (root / "CMakePresets.json").write_text(
                '{"configurePresets": [{"name": "dev"}, {"name": "base", "hidden": true}]}',
                encoding="utf-8")
            (root / "binary").write_text(BINARY, encoding="utf-8")
            (root / "binary").chmod(0o755)
            (root / "README.md").write_text(readme, encoding="utf-8")
            faults = find_faults(root, str(root / "binary"), run)
            self.assertFalse((root / "made").exists())
            return faults

    def expect(self, readme, *words, run=False):
        faults = self.faults_with(readme, run)
        self.assertEqual(len(faults), 1, faults)
        for word in words:
            self.assertIn(word, faults[0])

    def test_sound_document(self):
        self.assertEqual(self.faults_with(SOUND), [])

    def test_links(self):
        self.expect("\n[x](docs/gone.md)", "README.md:2", "no such file")
        self.expect("[x](docs/page.md#third-part)", "no such heading")
        self.expect("[x](#nowhere)", "no such heading")

    def test_paths(self):
        self.expect("`src/gone/`", "src/gone")
        self.expect("`src/*/gone.h`", "gone.h")
        self.expect("`gone/file.cpp`", "no such file")
        self.expect("`./gone`", "no such file")

    def test_scripts(self):
        self.expect("```sh\n./gone\n```", "README.md:2", "no such file")
        self.expect("`./check --fast`", "no option --fast")

    def test_presets(self):
        self.expect("```sh\ncmake --preset base\n```", "no preset base")
        self.expect("```sh\nctest --preset gone\n```", "no preset gone")

    def test_halfbyte(self):
        self.expect("```sh\nbuild/dev/halfbyte walk\n```", "no subcommand walk")
        self.expect("`halfbyte run --model`", "no option --model")
        self.expect("```console\n$ halfbyte bench moe \\\n  --shape k3\n```", "README.md:3", "--shape")

    def test_running(self):
        good = "```console\n$ build/release/halfbyte run --model-path src/base\n```\n"
        bad = "```console\n$ build/release/halfbyte run --model-path src\n```\n"
        self.assertEqual(self.faults_with(good, run=True), [])
        self.expect(good + bad, "README.md:5", "exit status 1", run=True)
        self.assertEqual(self.faults_with(bad.replace("console", "console slow"), run=True), [])

    def test_arguments(self):
        self.expect("```sh\nbuild/dev/halfbyte run --model-path=src/gone\n```", "src/gone")


if __name__ == "__main__":
    unittest.main()
