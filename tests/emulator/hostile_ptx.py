"""Random PTX that no compiler prints: the emulator must answer it with an exception, or run it.

A case is a function of its number. It is a kernel of random instructions from the opcode table, or
a working kernel, its tokens then mutated or not; it is parsed, decoded, and launched for a while.
"""

import random
import re
from pathlib import Path

import jaxbw
from jaxbw import emulator
from jaxbw._native import emulator as _core

STEPS = 20_000  # a launch is given up after as many instructions
OPCODES = _core.opcodes()
SHIPPED = sorted((Path(jaxbw.__file__).parent / "kernels").glob("*sm100*.ptx"))
TOKEN = re.compile(r"[\w%$.:]+|\s+|.", re.DOTALL)
EXTREMES = (
    *("0", "1", "-1", "7", "31", "32", "33", "255", "65535", "65536", "1048576", "2147483647"),
    *("2147483648", "4294967295", "0xffffffff00000000", "0x7fffffffffffffff", "0x123456789"),
    *("18446744073709551615", "99999999999999999999", "0f7fc00000", "0d7ff8000000000000", "1e999"),
)

HEADER = """
.version 9.0
.target sm_100f
.address_size 64
.extern .func (.param .b32 printed) vprintf(.param .b64 format, .param .b64 arguments);
.global .b8 format[8] = {37, 100, 32, 37, 115, 32, 37, 110};
.func (.reg .b32 result) twice(.reg .b32 x)
{
  .reg .pred %p<8>;
  setp.lt.s32 %p0, x, 0;
  @%p0 ret;
  add.s32 result, x, x;
}
.visible .entry kernel(.param .u64 out, .param .align 64 .b8 map[128])
{
  .reg .pred %p<8>;
  .reg .b16 %h<8>;
  .reg .b32 %r<32>;
  .reg .f32 %f<8>;
  .reg .f64 %fd<8>;
  .reg .b64 %rd<16>;
  .reg .b128 %q<4>;
  .shared .align 1024 .b8 memory[8192];
  ld.param.u64 %rd0, [out];
  mov.u64 %rd1, map;
  mov.b64 %rd2, 0x4000404000010000;
  mov.b64 %rd3, 1;
  mov.u32 %r0, memory;
  mov.u32 %r1, %tid.x;
  mov.b32 %r2, 32;
  mov.b32 %r3, 1;
  mov.b32 %r4, 0x8200490;
  mov.b32 %r5, -1;
  setp.eq.u32 %p0, %r1, 0;
  setp.ne.u32 %p1, %r1, 0;
  mov.b16 %h0, 1;
  mov.b32 %f0, %r5;
"""
PARTS = (
    "mbarrier.init.shared::cta.b64 [memory], 1;",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [memory], 128;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    " [memory + 128], [%rd0], 128, [memory];",
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [memory + 1024], [%rd1, {%r3, %r3}], [memory];",
    "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [memory + 128], 128;",
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;",
    "mbarrier.try_wait.parity.shared::cta.b64 %p2, [memory], 0;",
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [memory + 64], 32;",
    "ld.shared.b32 %r6, [memory + 64];",
    "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {%r1};",
    "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r7, %r8}, [%r6]; tcgen05.wait::ld.sync.aligned;",
    "@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r6], %rd2, %rd2, %r4, %p0;",
    "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [memory];",
    "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 32;",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128"
    " [memory + 96], [memory];",
    "shfl.sync.idx.b32 %r9, %r1, 0, 31, -1;",
    "elect.sync _|%p3, -1;",
    "bar.sync 0;",
    "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    "st.shared.v2.b32 [memory + 256], {%r1, %r2};",
    "atom.shared.add.u32 %r10, [memory + 256], 1;",
    "{ .reg .b32 x; LOOP: add.s32 x, x, 1; setp.lt.s32 %p4, x, 9; @%p4 bra LOOP; }",
    "TARGETS: .branchtargets ON, ON; brx.idx %r3, TARGETS; ON:",
    "@%p1 call (%r9), twice, (%r1);",
    "call.uni (%r9), twice, (-1);",
    "{ .param .b64 p; .param .b32 q; mov.b64 %rd4, format; st.param.b64 [p], %rd4;"
    " call (q), vprintf, (p, p); }",
)
REGISTERS = {
    "b16": "%h", "b32": "%r", "b64": "%rd", "f32": "%f", "f64": "%fd", "pred": "%p", "b128": "%q"
}  # fmt: skip
NAMES = ("_", "memory", "LOOP", "TARGETS", "%tid.x", "kernel", "twice", "%clock", "%r1|%p1")


def _register(rng: random.Random, kind: str) -> str:
    bits = re.sub(r"^[us]", "b", kind)
    prefix = REGISTERS.get(bits) or REGISTERS[rng.choice(sorted(REGISTERS))]
    return f"{prefix}{rng.randrange(8 if prefix != '%q' else 4)}"


def _operand(rng: random.Random, letter: str, kind: str) -> str:
    choice = rng.random()
    if letter == "m" or (letter == "*" and choice < 0.2):
        inner = rng.choice(["memory", "%r0", "%rd0", "%rd1", "out", "%r6", _register(rng, "b64")])
        if rng.random() < 0.4:
            inner += f" + {rng.choice(['8', '64', '128', '1024', rng.choice(EXTREMES)])}"
        if rng.random() < 0.2:
            inner += ", {" + ", ".join("%r3" for _ in range(rng.randrange(6))) + "}"
        return f"[{inner}]"
    if choice < 0.3 and letter == "*":
        return (
            "{" + ", ".join(_register(rng, kind) for _ in range(rng.choice([0, 1, 2, 4, 8]))) + "}"
        )
    if choice < 0.45 and letter != "d":
        return rng.choice(EXTREMES)
    if choice < 0.5:
        return rng.choice(NAMES)
    return _register(rng, kind)


def _instruction(rng: random.Random) -> str:
    mnemonic, modifiers, operands, _ = rng.choice(OPCODES)
    known = modifiers.split()
    chosen = [
        m.replace("*", "64") for m in rng.sample(known, rng.randrange(min(len(known), 5) + 1))
    ]
    kinds = [m for m in chosen if re.fullmatch(r"[usbf]\d+|pred", m)]
    if not kinds and (typed := [m for m in known if re.fullmatch(r"[usbf]\d+|pred", m)]):
        kinds = [rng.choice(typed)]
        chosen += kinds
    letters = [
        letter
        for letter in re.findall(r"\S\??", operands)
        if len(letter) == 1 or rng.random() < 0.5
    ]
    listed = ", ".join(_operand(rng, letter[0], kinds[0] if kinds else "b32") for letter in letters)
    guard = rng.choice(["", "", "", "@%p0 ", "@!%p1 "])
    return f"{guard}{'.'.join([mnemonic, *chosen]).replace('*', '64')} {listed};"


def _mutate(rng: random.Random, text: str) -> str:
    tokens = TOKEN.findall(text)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        at = rng.randrange(len(tokens))
        match rng.randrange(8):
            case 0:
                del tokens[at]
            case 1:
                tokens.insert(at, tokens[rng.randrange(len(tokens))])
            case 2:
                other = rng.randrange(len(tokens))
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 3:
                tokens[at] = rng.choice(EXTREMES)
            case 4:
                tokens[at] = rng.choice([*'{}[]()<>,;|@!+-.:"/*\\\0\xff', "/*", ".reg", ".param"])
            case 5:
                numbers = [i for i, token in enumerate(tokens) if token.isdigit()]
                if numbers:
                    tokens[rng.choice(numbers)] = rng.choice(EXTREMES)
            case 6:
                tokens = tokens[:at] if rng.random() < 0.2 else tokens
            case 7:
                end = min(len(tokens), at + rng.randrange(40))
                tokens[at:at] = tokens[at:end] * rng.choice([1, 2, 50])
        if not tokens:
            return ""
    return "".join(tokens)


def text(case: int) -> str:
    """Returns the PTX of a case."""
    rng = random.Random(case)
    if SHIPPED and rng.random() < 0.05:
        return _mutate(rng, rng.choice(SHIPPED).read_text())
    body = [
        rng.choice(PARTS) if rng.random() < 0.5 else _instruction(rng)
        for _ in range(rng.choice([1, 3, 10]))
    ]
    whole = HEADER + "\n".join(body) + "\nret;\n}\n"
    return _mutate(rng, whole) if rng.random() < 0.4 else whole


def run(case: int) -> str:
    """Runs a case; returns how it ended: "ran", or the first words of the error.

    Raises whatever is no EmulatorError.
    """
    rng = random.Random(case)
    rng.random()
    ptx = text(case)
    data = emulator.empty(256, "uint32")
    data[...] = range(256)
    tensor_map = emulator.TensorMap.encode(data.reshape(16, 16), box=(16, 4))
    try:
        module = emulator.Module(ptx)
        for entry in module.entries():
            parameters = module._module.parameters(entry)
            args = [
                data if size == 8 else tensor_map if size == 128 else rng.randbytes(size)
                for _, _, size in parameters
            ]
            module.launch(
                entry,
                grid=4,
                block=rng.choice([1, 32, 128]),
                cluster=rng.choice([1, 1, 2]),
                args=args,
                schedule=rng.choice(["eager", "latest", "random", "pct"]),
                checks=rng.choice(["strict", "hardware", "off"]),
                seed=case,
                step_limit=STEPS,
                trace=rng.random() < 0.2,
            )
    except emulator.EmulatorError as error:
        return re.sub(r"[^a-z ].*", "", str(error).partition(": ")[2].strip())[:40] or "error"
    return "ran"
