#!/usr/bin/env python3
"""scripts/check_sass.py finds planted faults, and nothing where there are none."""

import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_sass  # noqa: E402

# void halfbyte::hopper::(anonymous namespace)::sweep_kernel<false, (halfbyte::WeightFormat)3>(...)
SWEEP = ("_ZN8halfbyte6hopper41_GLOBAL__N__8701469e_9_sweep__cu_6dbff83312sweep_kernelILb0ELNS_12"
         "WeightFormatE3EEEvNS0_4CallE")
# Two fragments an iteration, the first for two products: 17 instructions, 10 of them decode.
LOOP = """
  S2R R0, SR_TID.X
head:
  LDS.128 R4, [R0]
  IADD3 R0, R0, 0x10, RZ
  PRMT R9, R5, 0x7732, RZ
  LOP3.LUT R8, R4, 0x81c081c0, RZ, 0xc0, !PT
  HMUL2.BF16_V2 R12, R8, R9.H0_H0
  HMUL2.BF16_V2 R13, R8.reuse, R9.H1_H1
  HMUL2.BF16_V2 R14, R8, R9.H0_H0
  HMUL2.BF16_V2 R15, R8, R9.H1_H1
  HMMA.16816.F32.BF16 R24, R12, R20, R24
  HMMA.16816.F32.BF16 R28, R12, R22, R28
  HMUL2.BF16_V2 R12, R7, R9.H0_H0
  HMUL2.BF16_V2 R13, R7, R9.H1_H1
  HMUL2.BF16_V2 R14, R7, R9.H0_H0
  HMUL2.BF16_V2 R15, R7, R9.H1_H1
  HMMA.16816.F32.BF16 R24, R12, R20, R24
  ISETP.NE.AND P0, PT, R0, R1, PT
  @P0 BRA head
  EXIT
"""
FRAGMENTS, COUNT, DECODE = 2, 17, 10
BUDGET = f"# kernel fragments loop decode\nsweep_kernel {FRAGMENTS} {COUNT} {DECODE}\n"


def listing(code, name=SWEEP):
    """As cuobjdump prints it: addresses and words of machine code; labels become addresses."""
    labels, lines = {}, []
    for line in code.split("\n"):
        if line.endswith(":"):
            labels[line[:-1]] = f"0x{16 * len(lines):x}"
        elif line.strip():
            lines.append(line.strip())
    text = f"\tcode for sm_90a\n\t\tFunction : {name}\n\t.headerflags\t@\"EF_CUDA_SM90\"\n"
    for i, line in enumerate(lines):
        words = [labels.get(word, word) for word in line.split(" ")]
        text += f"        /*{16 * i:04x}*/    {' '.join(words)} ;    /* 0x00000a00ff017b82 */\n"
        text += "                             /* 0x000ff00000000800 */\n"
    return text


class CheckSass(unittest.TestCase):
    def find(self, code=LOOP, budget=BUDGET, compiled=True, text=None):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            source = root / "src/moe/cuda/sweep.cu"
            source.parent.mkdir(parents=True)
            source.write_text("")
            (source.parent / "sass_budget.txt").write_text(budget)
            objects = root / "build/CMakeFiles/halfbyte.dir/src/moe/cuda"
            objects.mkdir(parents=True)
            if compiled:
                (objects / "sweep.cu.o").write_text("")
            faults, largest = check_sass.find_faults(
                root, root / "build", lambda _: listing(code) if text is None else text)
            return faults, [(key[2], *counts) for key, counts in largest.items()]

    def expect_one(self, part, **changes):
        faults, _ = self.find(**changes)
        self.assertEqual(len(faults), 1, faults)
        self.assertIn(part, faults[0])

    def expect_counts(self, code, *counts):
        self.assertEqual(self.find(code)[1], [counts])

    def test_no_fault(self):
        self.assertEqual(self.find(), ([], [(FRAGMENTS, COUNT, DECODE)]))

    def test_one_too_many_in_the_decoder(self):
        code = LOOP.replace("  HMUL2.BF16_V2 R12, R7", "  SHF.L.W.U32.HI R7, R7, 0xa, R7\n"
                                                       "  HMUL2.BF16_V2 R12, R7")
        faults, _ = self.find(code)
        self.assertEqual(len(faults), 2, faults)
        self.assertIn("has 18 instructions in a loop", faults[0])
        self.assertIn("has 11 instructions that decode", faults[1])

    def test_a_move_into_operand_a(self):
        self.expect_counts(LOOP.replace("BF16_V2 R15, R7,", "BF16_V2 R19, R7,").replace(
            "  HMMA.16816.F32.BF16 R24, R12, R20, R24\n  ISETP",
            "  IMAD.MOV.U32 R15, RZ, RZ, R19\n  HMMA.16816.F32.BF16 R24, R12, R20, R24\n  ISETP"),
            FRAGMENTS, COUNT + 1, DECODE + 1)

    def test_one_too_many_beside_the_decoder(self):
        self.expect_one("has 18 instructions in a loop",
                        code=LOOP.replace("  ISETP", "  IADD3 R2, R2, 0x1, RZ\n  ISETP"))

    def test_one_exchanged_for_another_that_decodes(self):
        self.expect_one("has 11 instructions that decode", code=LOOP.replace(
            "  IADD3 R0, R0, 0x10, RZ", "  IADD3 R4, R4, 0x10, RZ"))

    def test_what_follows_the_loop_is_not_counted(self):
        self.expect_counts(LOOP.replace("  EXIT", "  FADD R24, R24, R25\n  EXIT"),
                           FRAGMENTS, COUNT, DECODE)

    def test_code_that_was_moved_out_of_the_loop_is_counted(self):
        code = LOOP.replace("  IADD3", "  @P1 BRA cold\nwarm:\n  IADD3") + (
            "cold:\n  NANOSLEEP 0x20\n  BRA warm\n")
        self.expect_counts(code, FRAGMENTS, COUNT + 3, DECODE)

    def test_the_innermost_loop_is_counted(self):
        code = LOOP.replace("head:", "outer:\n  CS2R R24, SRZ\nhead:").replace(
            "  EXIT", "  STG.E [R30], R24\n  @P2 BRA outer\n  EXIT")
        self.expect_counts(code, FRAGMENTS, COUNT, DECODE)

    def test_a_loop_that_decodes_ahead(self):
        loop = LOOP.split("head:\n")[1].split("\n")
        products = loop.index("  HMMA.16816.F32.BF16 R24, R12, R20, R24")
        loop = loop[products:-4] + loop[:products] + loop[-4:]
        self.expect_counts("  S2R R0, SR_TID.X\nhead:\n" + "\n".join(loop),
                           FRAGMENTS, COUNT, DECODE)

    def test_wgmma(self):
        code = LOOP.replace("HMMA.16816.F32.BF16 R24, R12, R20, R24",
                            "HGMMA.64x8x16.F32.BF16 R24, R12, gdesc[UR8], R24").replace(
            "  HMMA.16816.F32.BF16 R28, R12, R22, R28\n", "")
        self.expect_counts(code, FRAGMENTS, COUNT - 1, DECODE)

    def test_no_loop(self):
        faults, _ = self.find(LOOP.replace("  @P0 BRA head\n", ""))
        self.assertIn("has no loop around its tensor-core instructions", faults[0])

    def test_a_branch_forward_is_no_loop(self):
        faults, _ = self.find(LOOP.replace("@P0 BRA head", "@P0 BRA end").replace(
            "  EXIT", "end:\n  EXIT"))
        self.assertIn("has no loop around its tensor-core instructions", faults[0])

    def test_kernel_without_tensor_cores(self):
        self.assertEqual(self.find("\n".join(line for line in LOOP.split("\n")
                                               if "HMMA" not in line), budget=""), ([], []))

    def test_kernel_without_a_line(self):
        self.expect_one("has no line for loops of 2 fragments", budget="")

    def test_line_without_a_kernel(self):
        self.expect_one("no kernel gone_kernel", budget=BUDGET + "gone_kernel 2 1 1\n")

    def test_line_without_a_loop(self):
        self.expect_one("sweep_kernel with a loop of 4", budget=BUDGET + "sweep_kernel 4 99 99\n")

    def test_line_that_is_none(self):
        self.expect_one("expected KERNEL", budget=BUDGET + "other 96 1\n")

    def test_line_twice(self):
        self.expect_one("already", budget=BUDGET + BUDGET)

    def test_source_that_was_not_compiled(self):
        self.assertIn("has no object", self.find(compiled=False)[0][0])

    def test_object_without_code(self):
        self.assertIn("no machine code", self.find(text="Fatbin elf code:\n")[0][0])

    def test_no_disassembler(self):
        with unittest.mock.patch.object(check_sass, "DISASSEMBLER", pathlib.Path("/nowhere")):
            with self.assertRaisesRegex(SystemExit, "make_disassembler"):
                check_sass.disassemble("sweep.cu.o")


if __name__ == "__main__":
    unittest.main()
