#!/usr/bin/env python3
"""Checks the machine code of the loops around the tensor cores against a budget.

    scripts/check_sass.py BUILD [--print]    BUILD: a build folder with CUDA, e.g. build/release

The objects of a build are disassembled (scripts/make_disassembler). Of each kernel with tensor-core
instructions (HMMA, HGMMA), the innermost loops that hold them are counted, an iteration at a time:

  fragments   operands A, 16 x 16 weights each, 8 of them in a lane: one HGMMA, or the HMMAs that
              read the same registers before they are written again
  loop        all instructions, whichever branches are taken
  decode      those between the loads and the registers of operands A

A kernel must stay within its line of sass_budget.txt beside it, `KERNEL FRAGMENTS LOOP DECODE`: one
for each number of fragments an iteration, the largest of such loops in its instantiations. Every
loop has a line and every line a loop. --print writes the lines that would fit. Prints one line a
fault; exit status 1 if there are any. Checked by tests/scripts/test_check_sass.py.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys

import check_kernels

ROOT = pathlib.Path(__file__).resolve().parents[1]
DISASSEMBLER = ROOT / ".cuda/disassembler"
TENSOR = ("HMMA", "HGMMA")
FUNCTION = re.compile(r"Function : (\w+)")
INSTRUCTION = re.compile(
    r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z]\w*)(\S*)\s*(.*?)\s*;")
DESTINATION = re.compile(r"(?:U?P\w+, *)*R(\d+)\b")
REGISTER = re.compile(r"\bR(\d+)\b")

Instruction = collections.namedtuple("Instruction",
                                     "address predicate opcode modifiers operands")


def disassemble(path):
    tool = DISASSEMBLER / "cuobjdump"
    if not tool.is_file():
        sys.exit(f"no {tool}; scripts/make_disassembler fetches it")
    # It looks for nvdisasm on PATH.
    ran = subprocess.run([tool, "-sass", path], capture_output=True, text=True,
                         env={**os.environ, "PATH": f"{DISASSEMBLER}:{os.environ.get('PATH', '')}"})
    if ran.returncode != 0:
        sys.exit(f"{tool} -sass {path} failed: {ran.stderr.strip()}")
    return ran.stdout


def parse_code(text):
    """{mangled name: [Instruction]}"""
    functions, code = {}, []
    for line in text.splitlines():
        if match := FUNCTION.search(line):
            code = functions.setdefault(match.group(1), [])
        elif match := INSTRUCTION.match(line):
            code.append(Instruction(int(match.group(1), 16), *match.groups()[1:]))
    return functions


def find_loops(code):
    """[indices in order] of the innermost loops with tensor-core instructions.

    A loop is what reaches a backward branch without passing its target; where that takes in the
    kernel's first instruction, the branch only comes back from code that was moved out of the way.
    """
    index = {instruction.address: i for i, instruction in enumerate(code)}
    before, back = collections.defaultdict(list), []
    for i, (_, predicate, opcode, modifiers, operands) in enumerate(code):
        is_branch = opcode == "BRA"
        # Calls return, and what BSYNC waits for is what follows it.
        ends = opcode in ("EXIT", "RET", "BRX", "JMX") or (
            is_branch and re.fullmatch(r"0x[0-9a-f]+", operands) and not modifiers)
        if i + 1 < len(code) and (predicate or not ends):
            before[i + 1].append(i)
        if is_branch:
            target = index[int(operands.split("0x")[-1], 16)]
            before[target].append(i)
            if target <= i:
                back.append((target, i))
    tensor = {i for i, instruction in enumerate(code) if instruction.opcode in TENSOR}
    loops = collections.defaultdict(set)
    for head, end in back:
        body, ahead = {head}, [end]
        while ahead:
            i = ahead.pop()
            if i not in body:
                body.add(i)
                ahead += before[i]
        if 0 not in body and body & tensor:
            loops[head] |= body
    return [sorted(body) for head, body in sorted(loops.items())
            if not any(other < body and other & tensor for other in loops.values())]


def written_registers(instruction):
    match = DESTINATION.match(instruction.operands)
    if not match:
        return set()
    width = 4 if ".128" in instruction.modifiers else (
        2 if re.search(r"\.(64|WIDE)\b", instruction.modifiers) else 1)
    return set(range(int(match.group(1)), int(match.group(1)) + width))


def operand_a(instruction):
    """The first of its four registers."""
    return int(REGISTER.findall(instruction.operands)[1])


def count_loop(code, loop):
    """(fragments, instructions, instructions of the decoder)"""
    fragments, last_write = set(), {}
    for i in loop:
        if code[i].opcode in TENSOR:
            fragments.add((operand_a(code[i]), last_write.get(operand_a(code[i]))))
        else:
            last_write.update(dict.fromkeys(written_registers(code[i]), i))
    wanted, decode = set(), set()
    for i in 2 * loop[::-1]:  # twice: what one iteration decodes, the next may multiply
        instruction = code[i]
        written = written_registers(instruction)
        if instruction.opcode in TENSOR:
            a = operand_a(instruction)
            wanted |= set(range(a, a + 4))
        elif written & wanted:
            if not instruction.predicate:
                wanted -= written
            if not instruction.opcode.startswith("LD"):
                decode.add(i)
                wanted |= set(map(int, REGISTER.findall(instruction.operands)[1:]))
    return len(fragments), len(loop), len(decode)


def find_faults(root, build, disassemble=disassemble):
    """(faults, {(folder, kernel, fragments): [loop, decode]})"""
    root, build = pathlib.Path(root), pathlib.Path(build)
    budget, faults = check_kernels.read_budget(root, "sass_budget.txt",
                                               "KERNEL FRAGMENTS LOOP DECODE", keys=2)
    largest = {}
    for source in sorted((root / "src").rglob("*.cu")):
        name = source.relative_to(root)
        compiled = next(build.glob(f"CMakeFiles/*.dir/{name}.o"), None)
        if compiled is None:
            faults.append(f"{name}: {build} has no object of it")
            continue
        functions = parse_code(disassemble(compiled))
        if not functions:
            faults.append(f"{name}: no machine code is found in its object")
        kernels = [(mangled, code) for mangled, code in functions.items()
                   if any(instruction.opcode in TENSOR for instruction in code)]
        for short, (mangled, code) in zip(check_kernels.short_names([k for k, _ in kernels]),
                                          kernels):
            loops = find_loops(code)
            if not loops:
                faults.append(f"{name}: {short} has no loop around its tensor-core instructions "
                              f"({mangled})")
            for loop in loops:
                fragments, instructions, decode = count_loop(code, loop)
                key = (source.parent, short, fragments)
                most = largest.setdefault(key, [0, 0])
                most[:] = max(most[0], instructions), max(most[1], decode)
                if key not in budget:
                    faults.append(f"{name}: {short} has no line for loops of {fragments} fragments "
                                  f"in {name.parent}/sass_budget.txt")
                    budget[key] = (1 << 30, 1 << 30, "")
                    continue
                where = budget[key][2]
                at = f"{fragments} fragments at {code[loop[0]].address:#x} ({mangled})"
                for count, allowed, what in zip((instructions, decode), budget[key],
                                                ("instructions", "instructions that decode")):
                    if count > allowed:
                        faults.append(f"{name}: {short} has {count} {what} in a loop, {where} "
                                      f"allows {allowed}: {at}")
    for (folder, short, fragments), (_, _, where) in budget.items():
        if (folder, short, fragments) not in largest:
            faults.append(f"{where}: there is no kernel {short} with a loop of {fragments} "
                          "fragments")
    return faults, largest


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--print", action="store_true", help="write the lines that would fit")
    arguments = parser.parse_args()
    faults, largest = find_faults(ROOT, arguments.build)
    if arguments.print:
        for (folder, short, fragments), (loop, decode) in sorted(largest.items()):
            print(f"{short:24} {fragments:4} {loop:7} {decode:7}   # {folder.relative_to(ROOT)}")
        return 0
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
