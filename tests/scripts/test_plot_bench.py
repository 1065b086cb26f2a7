#!/usr/bin/env python3
"""tools/plot_bench on made-up records: which count, what stands in tables and plot, what --check
and bad records do."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/plot_bench"
PAGE = """# Page

before
<!-- Written by tools/plot_bench from bench/results: begin -->
old
<!-- Written by tools/plot_bench from bench/results: end -->
after
"""
BASELINES = {
    "source": "Peers: somebody's.", "zipf_of_uniform": {"64": 0.8},
    "most_us": {"k3-tp8": {"1": 16}},
    "floors": {"k3": [[1, 1, 84], [2, 16, 88], [32, 512, 86]], "k3-tp8": [[1, 1, 50]]},
    "peers_nvfp4": {"k3": {"1": [124, "Rival", 52]}}, "peers_mxfp4": {"k3": {"1": [99, "Other"]}},
}
READ, DENSE = 4.5e12, 750e12


def record(tokens, share, **changes):
    """A memory-bound call that takes 9 MB x tokens at a share of the roof."""
    moved = 9e6 * tokens
    made = {
        "bench": "moe", "shape": "k3", "hidden": 3584, "intermediate": 3072, "experts": 896,
        "routed_experts": 896, "top_k": 16, "activation": "situ", "weights": "nvfp4",
        "backend": "hopper", "routing": "uniform", "tokens": tokens, "bytes": moved,
        "flops": 1e6, "plausible": True, "calls_per_graph": 1,
        "burst_seconds": moved / READ / 0.95, "burst_share_of_roof": 0.95,
        "sustained_seconds": moved / READ / share, "sustained_share_of_roof": share,
        "sm_mhz": 1545.0, "watts": 695.0, "read_burst": 4.6e12, "read_sustained": READ,
        "dense_burst": 800e12, "dense_sustained": DENSE,
        "device": "cuda:0, NVIDIA H200, 132 SMs at up to 1980 MHz", "commit": "abc",
    }
    return {**made, **changes}


class PlotBench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "results").mkdir()
        self.page = self.folder / "page.md"
        self.page.write_text(PAGE)
        (self.folder / "baselines.json").write_text(json.dumps(BASELINES))
        self.image = self.folder / "images/plot.svg"

    def write(self, records, name="a.jsonl"):
        (self.folder / "results" / name).write_text(
            "".join(json.dumps(record) + "\n" for record in records))

    def run_tool(self, *options):
        return subprocess.run(
            [sys.executable, str(TOOL), "--results", str(self.folder / "results"), "--baselines",
             str(self.folder / "baselines.json"), "--page", str(self.page), "--image",
             "images/plot.svg", *options], capture_output=True, text=True)

    def tables(self, records):
        """The cells of every line of the page's tables by its first cell and column, one dictionary
        a table."""
        self.write(records)
        ran = self.run_tool()
        self.assertEqual(ran.returncode, 0, ran.stderr)
        found, head = [], None
        for line in self.page.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not line.startswith("|"):
                head = None
            elif head is None:
                head = cells
                found.append({})
            elif cells[0] != "---":
                found[-1][cells[0]] = dict(zip(head, cells))
                self.assertEqual(len(cells), len(head))
        return found

    def test_no_records(self):
        self.write([record(1, 0.9, device="cuda:0, NVIDIA H100, 132 SMs"),
                    {"bench": "roof", "device": "cuda:0, NVIDIA H200"},
                    {"bench": "moe", "device": "cpu.avx512"}])
        self.assertEqual(self.run_tool().returncode, 0)
        text = self.page.read_text()
        self.assertIn("No records", text)
        self.assertTrue(text.startswith("# Page\n\nbefore\n<!--") and text.endswith("-->\nafter\n"))
        self.assertNotIn("old", text)
        self.assertFalse(self.image.exists())

    def test_a_line_of_the_table(self):
        (table,) = self.tables([record(1, 0.9), record(1, 0.25, backend="dequant")])
        self.assertEqual(list(table), ["1"])
        line = table["1"]
        self.assertEqual(line["us"], f"{9e6 / READ / 0.9 * 1e6:.1f}")
        self.assertEqual(line["rate"], f"{READ * 0.9 / 1e12:.2f} TB/s")
        self.assertEqual((line["floor"], line["in bursts"]), ("84", "95.0"))
        self.assertEqual((line["MHz"], line["W"]), ("1545", "695"))
        self.assertEqual(line["dequant us"], "8.0")
        self.assertEqual(line["best peer"], "124 us Rival, 52 %")
        text = self.page.read_text()
        self.assertIn("| 1 | 2.2 | 4.05 TB/s | 90.0 | 84 | 95.0 | 1545 | 695 | 8.0 | 25.0 |", text)
        for part in ("NVIDIA H200, 132 SMs", "Commit abc.", "read 4.50 TB/s (4.60 in bursts), "
                     "dense 750 TFLOP/s (800)", "Peers: somebody's.", "1 of 1 floors are met"):
            self.assertIn(part, text)

    def test_operations_as_the_roof(self):
        (table,) = self.tables([record(1, 0.5, flops=DENSE * 1e-3, sustained_seconds=2e-3)])
        self.assertEqual(table["1"]["rate"], "375 TFLOP/s")
        self.assertEqual(table["1"]["us"], "2000")

    def test_missed_floors(self):
        (table,) = self.tables([record(1, 0.8399), record(2, 0.88), record(8, 0.9),
                                record(64, 0.85), record(24, 0.1)])
        self.assertEqual({tokens: line["floor"] for tokens, line in table.items()},
                         {"1": "84 ✗", "2": "88", "8": "88", "24": "", "64": "86 ✗"})
        self.assertIn("2 of 4 floors are met", self.page.read_text())

    def test_a_time_may_be_asked_for_too(self):
        slow, quick = (self.tables([record(1, 0.6, shape="k3-tp8", sustained_seconds=seconds)])
                       for seconds in (16.1e-6, 15.9e-6))
        self.assertEqual(slow[0]["1"]["floor"], "50, 16 us ✗")
        self.assertEqual(quick[0]["1"]["floor"], "50, 16 us")

    def test_zipf_is_held_against_uniform(self):
        uniform, good = self.tables([record(64, 0.9), record(64, 0.73, routing="zipf")])
        self.assertEqual((uniform["64"]["floor"], good["64"]["floor"]), ("86", "72"))
        _, bad = self.tables([record(64, 0.9), record(64, 0.71, routing="zipf")])
        self.assertEqual(bad["64"]["floor"], "72 ✗")
        (alone,) = self.tables([record(64, 0.71, routing="zipf")])
        self.assertNotIn("floor", alone["64"])

    def test_other_shapes_and_activations_have_no_floor(self):
        for change in ({"shape": "gpt-oss"}, {"activation": "swiglu"}):
            (table,) = self.tables([record(1, 0.1, **change)])
            self.assertNotIn("floor", table["1"])

    def test_mxfp4_has_its_own_peer_and_the_same_floor(self):
        (table,) = self.tables([record(1, 0.9, weights="mxfp4")])
        self.assertEqual(table["1"]["best peer"], "99 us Other")
        self.assertEqual(table["1"]["floor"], "84")

    def test_dequant_alone_meets_no_floor(self):
        (table,) = self.tables([record(1, 0.9, backend="dequant")])
        self.assertEqual(table["1"]["floor"], "84")
        self.assertNotIn("us", table["1"])
        self.assertNotIn("floors are met", self.page.read_text())
        self.assertFalse(self.image.exists())

    def test_a_wrong_y_has_no_figures(self):
        (table,) = self.tables([record(1, 0.9, plausible=False), record(2, 0.9)])
        self.assertEqual(table["1"]["us"], "y is wrong")
        self.assertEqual(table["1"]["% of roof"], "-")
        self.assertEqual(table["1"]["floor"], "84 ✗")
        self.assertEqual(self.image.read_text().count("<circle"), 1)

    def test_the_newest_counts(self):
        self.write([record(1, 0.5, date="2026-12-02T01:00:00Z", commit="new")], "a.jsonl")
        self.write([record(1, 0.6, date="2026-12-01T01:00:00Z", commit="old"),
                    record(2, 0.7), record(2, 0.8, commit="last")], "b.jsonl")
        self.assertEqual(self.run_tool().returncode, 0)
        text = self.page.read_text()
        self.assertIn("Commit last, new (2026-12-02).", text)
        self.assertRegex(text, r"\| 1 \|.* 50\.0 \|.*\n\| 2 \|.* 80\.0 \|")

    def test_order_of_tables(self):
        self.tables([record(1, 0.9, shape="qwen3-30b"), record(1, 0.9, routing="zipf"),
                     record(1, 0.9, weights="mxfp4"), record(1, 0.9, calls_per_graph=8),
                     record(1, 0.9), record(1, 0.9, shape="100x200x8x2")])
        self.assertEqual(re.findall(r"^### (.*)", self.page.read_text(), re.M), [
            "k3: nvfp4, situ, uniform routing", "k3: nvfp4, situ, uniform routing, 8 calls a graph",
            "k3: nvfp4, situ, zipf routing", "k3: mxfp4, situ, uniform routing",
            "qwen3-30b: nvfp4, situ, uniform routing", "100x200x8x2: nvfp4, situ, uniform routing"])

    def test_the_plot(self):
        self.tables([record(1, 0.5), record(1024, 1.0), record(1, 0.6, routing="zipf"),
                     record(1, 0.7, shape="gpt-oss"), record(32, 0.9, backend="dequant")])
        svg = "{http://www.w3.org/2000/svg}"
        root = xml.etree.ElementTree.fromstring(self.image.read_text())
        paths = {kind: [path.get("d") for path in root.iter(f"{svg}path")
                        if path.get("class").startswith(kind)] for kind in ("curve", "floor")}
        self.assertEqual(len(paths["curve"]), 2)
        self.assertEqual(len(paths["floor"]), 1)
        # 1 and 1024 tokens are the ends of the axis, 100 % its top; 50 % lies in the middle.
        x0, y0, x1, y1 = map(float, re.findall(r"[\d.]+", paths["curve"][0]))
        grid = [path.get("d") for path in root.iter(f"{svg}path") if path.get("class") == "grid"]
        left, bottom, right = map(float, re.findall(r"[\d.]+", grid[0]))
        ceiling = float(re.findall(r"[\d.]+", grid[-1])[1])
        self.assertEqual((x0, x1, y1), (left, right, ceiling))
        self.assertAlmostEqual(y0, (bottom + ceiling) / 2)
        # The step from 84 to 88 % lies at sqrt(1 * 2) tokens: a twentieth of the axis.
        start, _, step = map(float, re.findall(r"[\d.]+", paths["floor"][0])[:3])
        self.assertEqual(start, left)
        self.assertAlmostEqual(step, left + (right - left) / 20, delta=0.06)
        self.assertIn("prefers-color-scheme:dark", self.image.read_text())
        self.assertIn("![", self.page.read_text())

    def test_labels_do_not_cover_each_other(self):
        self.tables([record(1, 0.01 + i / 1e3, shape=f"1x1x1x{i}") for i in range(9)])
        root = xml.etree.ElementTree.fromstring(self.image.read_text())
        heights = sorted(float(text.get("y")) for text in root.iter(
            "{http://www.w3.org/2000/svg}text") if (text.text or "").startswith("1x1x"))
        self.assertEqual(len(heights), 9)
        self.assertTrue(all(after - before > 14 for before, after in zip(heights, heights[1:])))
        self.assertLess(heights[-1], float(root.get("height")) - 30)

    def test_check(self):
        self.write([record(1, 0.9)])
        before = self.page.read_text()
        ran = self.run_tool("--check")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("page.md is not what the records say", ran.stdout)
        self.assertEqual((self.page.read_text(), self.image.exists()), (before, False))
        self.run_tool()
        ran = self.run_tool("--check")
        self.assertEqual((ran.returncode, ran.stdout), (0, ""))
        # A record more, an edit by hand, a plot that is gone, records that are gone.
        for change in (lambda: self.write([record(1, 0.9), record(2, 0.9)]),
                       lambda: self.page.write_text(self.page.read_text().replace("90.0", "99.0")),
                       self.image.unlink, lambda: self.write([])):
            change()
            self.assertEqual(self.run_tool("--check").returncode, 1)
            self.assertEqual(self.run_tool().returncode, 0)
            self.assertEqual(self.run_tool("--check").returncode, 0)
        self.assertFalse(self.image.exists())

    def test_bad_records_and_pages_are_named(self):
        missing = record(1, 0.9)
        del missing["watts"]
        for text, message in ((json.dumps(missing), "a.jsonl:1: watts: None, expected a number"),
                              ("{", "a.jsonl:1: not JSON"), ("[]", "a.jsonl:1: expected an object"),
                              (json.dumps(record(1, 0.9, shape=3)), "a.jsonl:1: shape: 3")):
            (self.folder / "results/a.jsonl").write_text(text + "\n")
            ran = self.run_tool()
            self.assertEqual(ran.returncode, 1)
            self.assertIn(message, ran.stderr)
            self.assertNotIn("Traceback", ran.stderr)
        self.write([])
        self.page.write_text("no markers")
        self.assertIn("the page needs", self.run_tool().stderr)


if __name__ == "__main__":
    unittest.main()
