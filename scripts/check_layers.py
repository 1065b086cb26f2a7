#!/usr/bin/env python3
"""Checks who includes whom: docs/architecture.md, section "Layers".

    scripts/check_layers.py [ROOT]

Every `#include "..."` under include/, src/ and apps/ must name a file of the project and point
downwards in LAYERS. The folders `ref/ cpu/ cuda/ dequant/` inside a layer are private: only files
of that layer include them, and they are strangers to each other. Public headers include public
headers only. Prints one line a fault; exit status 1 if there are any.
Checked by tests/scripts/test_check_layers.py.
"""

import pathlib
import re
import sys

# layer -> the layers that it may include beside itself
LAYERS = {
    "base": [],
    "formats": ["base"],
    "text": ["base"],
    "simd": ["base", "formats"],
    "cuda": ["base", "formats"],
    "ops": ["base", "formats", "simd", "cuda"],
    "moe": ["base", "formats", "simd", "cuda", "ops"],
    "convert": ["base", "formats"],
    "model": ["base", "formats", "ops", "moe"],
    "c_api": ["base", "formats", "cuda", "moe"],
    "engine": ["base", "formats", "ops", "moe", "model"],
    "server": ["base", "text", "engine"],
    "apps": ["base", "formats", "text", "simd", "cuda", "ops", "moe", "convert", "model",
             "engine", "server"],
}

# A public header belongs to a layer, as if it lay there; the layers above may include it.
PUBLIC = {
    "error.h": "base",
    "tensor.h": "base",
    "device.h": "base",
    "activation.h": "ops",
    "moe.h": "moe",
    "halfbyte_c.h": "c_api",
}

PRIVATE_FOLDERS = {"ref", "cpu", "cuda", "dequant"}
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def place_of(path):
    """(layer, private folder or None) of a path relative to the root; layer "include" if public."""
    parts = path.parts
    if parts[0] == "include":
        return "include", None
    if parts[0] == "apps":
        return "apps", None
    layer = parts[1] if len(parts) > 2 else "src"
    private = parts[2] if len(parts) > 3 and parts[2] in PRIVATE_FOLDERS else None
    return layer, private


def resolve(root, source, name):
    """The project's file that `#include "name"` in `source` names, or None."""
    for folder in (source.parent, pathlib.Path("src"), pathlib.Path("include")):
        if (root / folder / name).is_file():
            return folder / name
    return None


def faults_of_include(root, source, name):
    layer, private = place_of(source)
    if ".." in pathlib.PurePath(name).parts:
        return [f'"{name}": name files from src/ or include/, without ".."']
    target = resolve(root, source, name)
    if target is None or (target.parts[0] == "include" and target.name not in PUBLIC):
        return [f'"{name}" is no file of the project (other libraries are included with <>)']
    target_layer, target_private = place_of(target)
    if layer == "include":
        if target_layer != "include":
            return [f'"{name}": a public header includes public headers only']
        layer = PUBLIC[source.name]
    if target_layer == "include":
        target_layer = PUBLIC[target.name]
    if target_layer != layer and target_layer not in LAYERS[layer]:
        return [f'"{name}": {layer} must not include {target_layer}']
    if target_private and (target_layer != layer or private not in (None, target_private)):
        return [f'"{name}": {target_layer}/{target_private} is private']
    return []


def find_faults(root):
    root = pathlib.Path(root)
    faults = []
    for top in ("include", "src", "apps"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            source = path.relative_to(root)
            layer, _ = place_of(source)
            if layer not in LAYERS and not (layer == "include" and path.name in PUBLIC):
                faults.append(f"{source}: belongs to no layer (LAYERS, PUBLIC in check_layers.py)")
                continue
            text = path.read_text(encoding="utf-8")
            for match in INCLUDE.finditer(text):
                line = text.count("\n", 0, match.start(1)) + 1
                for fault in faults_of_include(root, source, match.group(1)):
                    faults.append(f"{source}:{line}: {fault}")
    return faults


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]
    faults = find_faults(root)
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
