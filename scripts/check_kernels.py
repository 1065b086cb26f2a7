#!/usr/bin/env python3
"""Checks what ptxas says of each kernel against a budget.

    scripts/check_kernels.py BUILD [--print]    BUILD: a build folder with CUDA, e.g. build/release

The build keeps the compiler's report beside each object (scripts/nvcc-launcher). A kernel must not
spill, must not keep anything in local memory, must not make the compiler serialise wgmma (C75xx),
and must stay within its line of budget.txt beside it: `KERNEL REGISTERS SHARED_BYTES`, the largest of
its instantiations; shared memory is what is declared statically. Every kernel has a line and every
line a kernel. --print writes the lines that would fit. Prints one line a fault; exit status 1 if
there are any. Checked by tests/scripts/test_check_kernels.py.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
ENTRY = re.compile(r"Compiling entry function '(\w+)'")
FUNCTION = re.compile(r"Function properties for (\w+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
SERIALISED = re.compile(r"\(C75\d\d\)")


def parse_report(text):
    """[(mangled name, {"registers", "shared", "stack", "spills"})], [fault]"""
    kernels, faults = {}, []
    entry = function = None
    for line in text.splitlines():
        if match := ENTRY.search(line):
            entry = match.group(1)
            kernels[entry] = {"registers": 0, "shared": 0, "stack": 0, "spills": 0}
        elif match := FUNCTION.search(line):
            function = match.group(1)
        elif match := STACK.search(line):
            stack, stores, loads = map(int, match.groups())
            if function in kernels:
                kernels[function].update(stack=stack, spills=stores + loads)
            elif stack or stores or loads:
                faults.append(f"{function}: a function that is not inlined uses {stack} bytes of "
                              "local memory")
        elif (match := USED.search(line)) and entry:
            kernels[entry]["registers"] = int(match.group(1))
            if shared := SHARED.search(line):
                kernels[entry]["shared"] = int(shared.group(1))
        if SERIALISED.search(line):
            faults.append(line.strip())
    return list(kernels.items()), faults


def short_names(mangled):
    """Names without namespaces, template arguments and parameters: few_kernel."""
    if not mangled:
        return []
    text = subprocess.run(["c++filt", "--no-params", *mangled], capture_output=True, text=True,
                          check=True).stdout
    names = []
    for line in text.splitlines():
        while "<" in line:
            shorter = re.sub(r"<[^<>]*>", "", line)
            if shorter == line:
                break
            line = shorter
        names.append(line.replace("(anonymous namespace)::", "").split()[-1].split("::")[-1])
    return names


def read_budget(root, file, columns, keys=1):
    """{(folder, KERNEL, the first numbers): (the other numbers..., "file:line")}, [fault]

    Of every `file` below src, lines of `columns`, the name of a kernel and numbers; the first `keys`
    columns say which line it is."""
    budget, faults = {}, []
    for path in sorted(root.glob(f"src/**/{file}")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = line.split("#")[0].split()
            where = f"{path.relative_to(root)}:{number}"
            if not words:
                continue
            if len(words) != len(columns.split()) or not all(word.isdigit() for word in words[1:]):
                faults.append(f"{where}: expected {columns}")
                continue
            numbers = list(map(int, words[1:]))
            key = (path.parent, words[0], *numbers[:keys - 1])
            if key in budget:
                faults.append(f"{where}: {' '.join(words[:keys])} has a line already")
            else:
                budget[key] = (*numbers[keys - 1:], where)
    return budget, faults


def find_faults(root, build):
    """(faults, {(folder, kernel): [registers, shared bytes]})"""
    root, build = pathlib.Path(root), pathlib.Path(build)
    budget, faults = read_budget(root, "budget.txt", "KERNEL REGISTERS SHARED_BYTES")
    largest = {}
    for source in sorted((root / "src").rglob("*.cu")):
        name = source.relative_to(root)
        report = next(build.glob(f"CMakeFiles/*.dir/{name}.o.ptxas"), None)
        if report is None:
            faults.append(f"{name}: {build} has no report of its compilation")
            continue
        kernels, more = parse_report(report.read_text(encoding="utf-8", errors="replace"))
        faults += [f"{name}: {fault}" for fault in more]
        for short, (mangled, use) in zip(short_names([k for k, _ in kernels]), kernels):
            key = (source.parent, short)
            most = largest.setdefault(key, [0, 0])
            most[0] = max(most[0], use["registers"])
            most[1] = max(most[1], use["shared"])
            if use["spills"]:
                faults.append(f"{name}: {short} spills {use['spills']} bytes ({mangled})")
            elif use["stack"]:
                faults.append(f"{name}: {short} keeps {use['stack']} bytes in local memory "
                              f"({mangled})")
            if key not in budget:
                faults.append(f"{name}: {short} has no line in {name.parent}/budget.txt")
                budget[key] = (1 << 30, 1 << 30, "")
                continue
            registers, shared, where = budget[key]
            if use["registers"] > registers:
                faults.append(f"{name}: {short} uses {use['registers']} registers, {where} allows "
                              f"{registers} ({mangled})")
            if use["shared"] > shared:
                faults.append(f"{name}: {short} uses {use['shared']} bytes of shared memory, "
                              f"{where} allows {shared} ({mangled})")
    for (folder, short), (_, _, where) in budget.items():
        if (folder, short) not in largest:
            faults.append(f"{where}: there is no kernel {short}")
    return faults, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--print", action="store_true", help="write the lines that would fit")
    arguments = parser.parse_args()
    faults, largest = find_faults(ROOT, arguments.build)
    if arguments.print:
        for (folder, short), (registers, shared) in sorted(largest.items()):
            print(f"{short:24} {registers:4} {shared:7}   # {folder.relative_to(ROOT)}")
        return 0
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
