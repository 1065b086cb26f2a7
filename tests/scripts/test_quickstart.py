#!/usr/bin/env python3
"""./quickstart hands options on, and its defaults give way to them. What it calls (cmake, the
installation, the binary) are stand-ins that say how they were called; scripts/logged is the real
one."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ["--model-path", "tests/golden/k3-tiny-nvfp4"]
IDS = ["--ids", "270,169,99,186"]


class Quickstart(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        for name in ("quickstart", "scripts/logged"):
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        self.stand_in("scripts/install_dependencies", "true")
        self.stand_in("bin/cmake", 'echo "[1/2] cmake $*"')
        self.stand_in("build/release/halfbyte", 'printf "<%s>\\n" "$@"')

    def stand_in(self, name, body):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def run_it(self, *options):
        environment = os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        return subprocess.run([self.root / "quickstart", *options], env=environment, check=False,
                              capture_output=True, text=True)

    def words(self, *options):
        """What the binary got."""
        done = self.run_it(*options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [line[1:-1] for line in done.stdout.splitlines() if line.startswith("<")]

    def test_without_options_the_defaults(self):
        self.assertEqual(self.words(), ["run", *MODEL, *IDS, "--max-new-tokens", "16"])

    def test_the_users_options_win(self):
        for options, words in (
                (["--max-new-tokens", "64"], [*MODEL, *IDS]),
                (["--max-new-tokens=64"], [*MODEL, *IDS]),
                (["--ids", "1,2"], [*MODEL, "--max-new-tokens", "16"]),
                (["--prompt", "Once upon a time"], [*MODEL, "--max-new-tokens", "16"]),
                (["--model-path", "K3", "--prompt", "Hi"], []),
                (["K3", "--prompt", "Hi"], []),
        ):
            self.assertEqual(self.words(*options), ["run", *words, *options])

    def test_says_what_the_ids_are_and_only_then(self):
        self.assertIn("token ids", self.run_it().stdout)
        self.assertNotIn("token ids", self.run_it("--model-path", "K3", "--prompt", "Hi").stdout)
        self.assertNotIn("token ids", self.run_it("K3", "--prompt", "Hi").stdout)

    def test_a_build_that_fails_shows_its_log(self):
        self.stand_in("bin/cmake", "echo no compiler; false")
        done = self.run_it()
        self.assertEqual(done.returncode, 1)
        self.assertIn("no compiler", done.stdout)
        self.assertNotIn("<run>", done.stdout)

    def test_progress_only_on_a_terminal(self):
        self.assertNotIn("[1/2]", self.run_it().stdout)
        command = f"{self.root}/scripts/logged {self.root}/log {self.root}/bin/cmake"
        done = subprocess.run(["script", "-qec", command, "/dev/null"], check=True,
                              capture_output=True, text=True, stdin=subprocess.DEVNULL)
        self.assertIn("[1/2]", done.stdout)
        self.stand_in("bin/cmake", "exit 3")
        done = subprocess.run(["script", "-qec", command, "/dev/null"], check=False,
                              capture_output=True, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 3)


if __name__ == "__main__":
    unittest.main()
