#!/usr/bin/env python3
"""scripts/check_kernels.py finds planted faults, and nothing where there are none."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_kernels  # noqa: E402

# void halfbyte::hopper::(anonymous namespace)::sweep_kernel<false, (halfbyte::WeightFormat)3>(...)
SWEEP = ("_ZN8halfbyte6hopper41_GLOBAL__N__8701469e_9_sweep__cu_6dbff83312sweep_kernelILb0ELNS_12"
         "WeightFormatE3EEEvNS0_4CallE")
GOOD = f"""ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{SWEEP}' for 'sm_90a'
ptxas info    : Function properties for {SWEEP}
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 96 registers, used 2 barriers, 1024 bytes smem
ptxas info    : Compile time = 12.000 ms
"""
BUDGET = "# kernel registers shared\nsweep_kernel 96 1024\n"


class CheckKernels(unittest.TestCase):
    def faults(self, report=GOOD, budget=BUDGET, compiled=True):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            source = root / "src/moe/cuda/sweep.cu"
            source.parent.mkdir(parents=True)
            source.write_text("")
            (source.parent / "budget.txt").write_text(budget)
            objects = root / "build/CMakeFiles/halfbyte.dir/src/moe/cuda"
            objects.mkdir(parents=True)
            if compiled:
                (objects / "sweep.cu.o.ptxas").write_text(report)
            return check_kernels.find_faults(root, root / "build")[0]

    def expect_one(self, part, **changes):
        faults = self.faults(**changes)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(part, faults[0])

    def test_no_fault(self):
        self.assertEqual(self.faults(), [])

    def test_spills(self):
        self.expect_one("spills 24 bytes", report=GOOD.replace(
            "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
            "16 bytes stack frame, 8 bytes spill stores, 16 bytes spill loads"))

    def test_local_memory(self):
        self.expect_one("keeps 64 bytes in local memory",
                        report=GOOD.replace("0 bytes stack", "64 bytes stack"))

    def test_function_with_a_stack(self):
        self.expect_one("not inlined", report=GOOD + (
            "ptxas info    : Function properties for _ZN8halfbyte4helpEv\n"
            "    32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"))

    def test_registers(self):
        self.expect_one("uses 97 registers", report=GOOD.replace("Used 96", "Used 97"))

    def test_shared_memory(self):
        self.expect_one("uses 1040 bytes", report=GOOD.replace("1024 bytes", "1040 bytes"))

    def test_serialised_wgmma(self):
        self.expect_one("C7510", report=GOOD + (
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
            f"serialized due to insufficient register resources in function '{SWEEP}'\n"))

    def test_kernel_without_a_line(self):
        self.expect_one("has no line", budget="")

    def test_line_without_a_kernel(self):
        self.expect_one("no kernel gone_kernel", budget=BUDGET + "gone_kernel 1 1\n")

    def test_line_that_is_none(self):
        self.expect_one("expected KERNEL", budget=BUDGET + "other 96\n")

    def test_line_twice(self):
        self.expect_one("already", budget=BUDGET + BUDGET)

    def test_source_that_was_not_compiled(self):
        faults = self.faults(compiled=False)
        self.assertIn("no report", faults[0])


if __name__ == "__main__":
    unittest.main()
