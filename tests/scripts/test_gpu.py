#!/usr/bin/env python3
"""tools/gpu against stand-ins for the binaries and nvidia-smi: what it counts as failed, what it
writes."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/gpu"

SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
"$@" || exit
exit SANITIZED
"""
TESTS = """#!/usr/bin/env python3
import json, sys
out = [a for a in sys.argv if a.startswith("--gtest_output=json:")][0].split(":", 1)[1]
json.dump({"testsuites": [{"name": "MoeGpu", "testsuite": TESTSUITE}]}, open(out, "w"))
sys.exit(STATUS)
"""
STRESS = """#!/bin/sh
echo "$HALFBYTE_STRESS $HALFBYTE_STRESS_SEED" >>"$0.calls"
[ "$HALFBYTE_STRESS_SEED" = FAULTY ] && exit 1
echo "[  PASSED  ] NUMBER test."
"""
BENCH = """#!/bin/sh
echo "$*" >>"$0.calls"
echo 'a line that is no record'
echo '{"bench": "'$2'", "tokens": 1, "share_of_roof": 0.9}'
exit STATUS
"""
SMI = """#!/bin/sh
case "$*" in
  *power.limit*) echo 'NVIDIA H200, 580.65, 700.00, 1980, 3201' ;;
  *) echo '1755, 3201, [N/A], 51' ;;
esac
"""


class Gpu(unittest.TestCase):
    def run_tool(self, *options, results=("COMPLETED",), tests_status=0, bench_status=0,
                 sanitized=0, stress=None, smi=SMI):
        """Runs the tool with stand-ins; returns its exit status, output, records and calls."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "tests").mkdir()
            suite = [{"name": f"t{i}", "result": result} for i, result in enumerate(results)]
            files = {
                "tests/halfbyte_tests": TESTS.replace("TESTSUITE", repr(suite)).replace(
                    "STATUS", str(tests_status)),
                "halfbyte": BENCH.replace("STATUS", str(bench_status)),
                "nvidia-smi": smi,
                "compute-sanitizer": SANITIZER.replace("SANITIZED", str(sanitized)),
            }
            if stress is not None:
                files["tests/halfbyte_tests"] = STRESS.replace("FAULTY", stress[0]).replace(
                    "NUMBER", stress[1])
            for path, text in files.items():
                (folder / path).write_text(text)
                (folder / path).chmod(0o755)
            out = folder / "results.jsonl"
            ran = subprocess.run(
                [sys.executable, str(TOOL), "--no-build", "--build", name, "--out", str(out),
                 "--commit", "abc", *options], capture_output=True, text=True,
                env={**os.environ, "PATH": f"{name}:{os.environ['PATH']}"})
            records = [json.loads(line) for line in out.read_text().splitlines()] if (
                out.exists()) else []
            calls = folder / "halfbyte.calls"
            return (ran.returncode, ran.stdout + ran.stderr, records,
                    calls.read_text().splitlines() if calls.exists() else [])

    def test_sanitizer_needs_tests_that_ran(self):
        status, text, _, _ = self.run_tool("--only", "sanitizer")
        self.assertEqual(status, 0, text)
        self.assertIn("memcheck clean, racecheck clean, synccheck clean", text)
        for fault in ({"results": ()}, {"results": ("SKIPPED",)}, {"tests_status": 1},
                      {"sanitized": 9}):
            status, text, _, _ = self.run_tool("--only", "sanitizer", **fault)
            self.assertEqual(status, 1, fault)
            self.assertIn("memcheck FAILED, racecheck FAILED, synccheck FAILED", text)

    def test_records_say_where_they_come_from(self):
        status, text, records, calls = self.run_tool(
            "--only", "bench", "--shapes", "k3,k3-tp8", "--backends", "hopper", "--tokens", "1,64")
        self.assertEqual(status, 0, text)
        self.assertEqual(calls, [
            "bench roof --device cuda:0 --json",
            "bench moe --device cuda:0 --json --calls-per-graph 8 --shape k3 --backend hopper"
            " --tokens 1,64",
            "bench moe --device cuda:0 --json --calls-per-graph 8 --shape k3-tp8 --backend hopper"
            " --tokens 1,64"])
        self.assertEqual([record["bench"] for record in records], ["roof", "moe", "moe"])
        for record in records:
            self.assertEqual(record["share_of_roof"], 0.9)
            self.assertEqual(record["commit"], "abc")
            self.assertEqual(record["gpu"], "NVIDIA H200")
            self.assertEqual(record["sm_clock_mhz"], 1755)
            self.assertNotIn("power_watts", record)

    def test_without_options_the_benches_are_those_of_the_page(self):
        status, text, _, calls = self.run_tool("--only", "bench")
        self.assertEqual(status, 0, text)
        for words in ("--shape k3-ep8 ", "--weights mxfp4", "--activation swiglu", "--routing zipf",
                      "--routing one", "--backend dequant", "--shape gpt-oss "):
            self.assertTrue(any(words in call for call in calls), words)
        _, _, _, calls = self.run_tool("--only", "bench", "--more=--weights mxfp4 --routing zipf",
                                       "--shapes", "k3", "--backends", "hopper", "--tokens", "64")
        self.assertEqual(calls[1:], ["bench moe --device cuda:0 --json --calls-per-graph 8 --shape k3"
                                     " --backend hopper --tokens 64 --weights mxfp4 --routing zipf"])

    def test_stress_needs_every_process(self):
        for stress, expected in ((("none", "1"), 0), (("1300", "1"), 1), (("none", "0"), 1)):
            status, text, _, _ = self.run_tool("--only", "stress", stress=stress)
            self.assertEqual(status, expected, text)
            self.assertEqual(text.count("from seed"), 10, text)
        self.assertIn("from seed 1900", text)

    def test_good_tests(self):
        self.assertEqual(self.run_tool("--only", "tests")[0], 0)

    def test_the_binding_is_tested_where_asked_for(self):
        with tempfile.TemporaryDirectory() as name:
            python = pathlib.Path(name) / "python"
            for script, status, words in (("exit 1", 1, "is not tested"), ("exit 0", 0, ""),
                                          ('[ "$1" = -c ]', 1, "python/halfbyte")):
                python.write_text(f"#!/bin/sh\n{script}\n")
                python.chmod(0o755)
                got, text, _, _ = self.run_tool("--only", "tests", "--python", str(python))
                self.assertEqual(got, status, text)
                self.assertIn(words, text)

    def test_a_failed_test_fails_and_benches_run_all_the_same(self):
        status, text, records, _ = self.run_tool(tests_status=1, results=("COMPLETED",))
        self.assertEqual(status, 1)
        self.assertIn("failed: tests", text)
        self.assertTrue(records)

    def test_a_skipped_test_fails(self):
        status, text, _, _ = self.run_tool("--only", "tests", results=("COMPLETED", "SKIPPED"))
        self.assertEqual(status, 1)
        self.assertIn("skipped: MoeGpu.t1", text)

    def test_no_test_at_all_fails(self):
        self.assertEqual(self.run_tool("--only", "tests", results=())[0], 1)

    def test_a_failed_bench_fails(self):
        status, text, _, _ = self.run_tool("--only", "bench", bench_status=3)
        self.assertEqual(status, 1)
        self.assertIn("failed: bench", text)

    def test_without_a_gpu_nothing_is_built_or_run(self):
        status, text, records, calls = self.run_tool("--device", "cuda:7", smi="#!/bin/sh\nexit 6\n")
        self.assertEqual((status, records, calls), (1, [], []))
        self.assertIn("no cuda:7", text)

    def test_missing_binaries_are_named(self):
        ran = subprocess.run([sys.executable, str(TOOL), "--no-build", "--build", "/nowhere"],
                             capture_output=True, text=True)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("/nowhere/halfbyte", ran.stderr)


if __name__ == "__main__":
    unittest.main()
