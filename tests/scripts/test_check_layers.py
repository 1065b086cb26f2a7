"""scripts/check_layers.py finds planted faults, and nothing in a sound tree."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
from check_layers import find_faults  # noqa: E402

SOUND = {
    "include/halfbyte/tensor.h": "#include <cstdint>\n",
    "include/halfbyte/device.h": '#include "halfbyte/tensor.h"\n',
    "include/halfbyte/moe.h": '#include "halfbyte/device.h"\n',
    "src/base/file.h": "#include <string>\n",
    "src/formats/safetensors.h": '#include "base/file.h"\n#include "halfbyte/tensor.h"\n',
    "src/text/tokenizer.h": '#include "base/file.h"\n',
    "src/ops/ops.h": '#include "halfbyte/device.h"\n',
    "src/ops/cpu/ops_cpu.h": '#include "ops/ops.h"\n',
    "src/ops/ref/ops_ref.h": '#include "ops/ops.h"\n',
    "src/ops/open.cpp": '#include "ops/cpu/ops_cpu.h"\n#include "ops/ref/ops_ref.h"\n',
    "src/moe/cpu/moe_cpu.cpp": '#include "halfbyte/moe.h"\n#include "ops/ops.h"\n',
    "apps/halfbyte/commands.h": "",
    "apps/halfbyte/main.cpp": '#include "commands.h"\n#include "text/tokenizer.h"\n',
}


def faults_with(extra):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in {**SOUND, **extra}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        return find_faults(root)


class CheckLayers(unittest.TestCase):
    def expect(self, extra, *words):
        faults = faults_with(extra)
        self.assertEqual(len(faults), 1, faults)
        for word in words:
            self.assertIn(word, faults[0])

    def test_sound_tree(self):
        self.assertEqual(faults_with({}), [])

    def test_upwards(self):
        self.expect(
            {"src/base/bad.cpp": '\n#include "formats/safetensors.h"\n'},
            "src/base/bad.cpp:2", "base must not include formats")

    def test_sideways(self):
        self.expect(
            {"src/formats/bad.h": '#include "text/tokenizer.h"\n'}, "formats must not include text")

    def test_upwards_through_a_public_header(self):
        self.expect({"src/ops/bad.h": '#include "halfbyte/moe.h"\n'}, "ops must not include moe")
        self.expect(
            {"include/halfbyte/tensor.h": '#include "halfbyte/moe.h"\n'},
            "base must not include moe")

    def test_private_from_another_layer(self):
        self.expect(
            {"src/moe/cpu/bad.cpp": '#include "ops/cpu/ops_cpu.h"\n'}, "ops/cpu is private")
        self.expect({"apps/halfbyte/bad.cpp": '#include "ops/ref/ops_ref.h"\n'}, "private")

    def test_private_from_a_sibling(self):
        self.expect({"src/ops/ref/bad.cpp": '#include "ops/cpu/ops_cpu.h"\n'}, "ops/cpu is private")

    def test_public_header_with_private_include(self):
        self.expect(
            {"include/halfbyte/error.h": '#include "base/file.h"\n'}, "public headers only")

    def test_path_with_dots(self):
        self.expect({"src/ops/bad.h": '#include "../base/file.h"\n'}, '".."')

    def test_unknown_file_and_folder(self):
        self.expect({"src/ops/bad.h": '#include "gone.h"\n'}, "no file of the project")
        self.expect({"src/utils/bad.h": ""}, "belongs to no layer")
        self.expect({"include/halfbyte/new.h": ""}, "belongs to no layer")


if __name__ == "__main__":
    unittest.main()
