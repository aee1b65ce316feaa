"""Target strings, the tables behind them, and what is read of a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dlc.core import machine, target_parse
from dlc.core.cpus import (
    BASELINE,
    CPUS,
    IMPLIES,
    KERNEL_NAMES,
    with_dependent,
    with_implied,
)
from dlc.core.errors import TargetError
from dlc.core.machine import Machine, host_arch, read_machine, usable_cores
from dlc.core.target import TILE_CYCLES
from dlc.core.target_json import target_from_json, target_to_json
from dlc.core.target_parse import parse_target

SERVER = Machine("x86_64", CPUS["icelake-server"].features, 8, 48 * 1024, 1280 * 1024)


@pytest.fixture
def server(monkeypatch):
    """This machine is a server with AVX-512."""
    monkeypatch.setattr(target_parse, "host_arch", lambda: "x86_64")
    monkeypatch.setattr(target_parse, "read_machine", lambda: SERVER)


@pytest.mark.parametrize("text", ["native", "llvm", "llvm -mcpu=native", " native "])
def test_native_is_this_machine(server, text):
    target = parse_target(text)
    assert target.features == SERVER.features
    assert target.triple == "x86_64-unknown-linux-gnu"
    assert (target.cores, target.l1_bytes, target.l2_bytes) == (8, 48 * 1024, 1280 * 1024)
    assert target.cpu == "x86-64"  # the name decides nothing
    assert target.vector_bits == 512


def test_features_are_masked_with_what_needs_them(server):
    features = parse_target("native -mattr=-avx512f").features
    assert "avx2" in features
    assert not [f for f in features if f.startswith("avx512")]
    assert parse_target("native -mattr=-avx512vnni").features == SERVER.features - {"avx512vnni"}
    assert parse_target("native -mattr=-amx-bf16,-fma").vector_bits == 256


def test_features_are_added_with_what_they_need(server):
    features = parse_target("llvm -mcpu=x86-64 -mattr=+avx512vbmi,+amx-bf16,-avx512vbmi").features
    assert features == with_implied("x86_64", "avx512bw") | {"amx-tile", "amx-bf16"}


def test_native_may_ask_for_what_it_has_and_no_more(server):
    assert parse_target("native -mattr=+avx512vnni").features == SERVER.features
    with pytest.raises(TargetError, match="this machine lacks 'amx-int8'"):
        parse_target("native -mattr=+amx-int8")
    assert "amx-int8" in parse_target("llvm -mattr=+amx-int8").features


def test_a_named_cpu_has_the_features_of_the_table(server):
    target = parse_target("llvm -mcpu=sapphirerapids -num-cores=3")
    assert {"amx-bf16", "avx512fp16"} <= target.features
    assert (target.cpu, target.cores, target.l2_bytes) == ("sapphirerapids", 3, 2048 * 1024)
    assert parse_target("llvm -mcpu=haswell").cores == 8


@pytest.mark.parametrize("triple", ["aarch64-linux-gnu", "arm64-unknown-linux-gnu"])
def test_another_architecture_starts_from_its_baseline(server, triple):
    target = parse_target(f"llvm -mtriple={triple}")
    assert target.features == {"neon"}
    assert (target.triple, target.cpu) == ("aarch64-unknown-linux-gnu", "generic")
    assert (target.arch, target.vector_bits, target.vector_registers) == ("aarch64", 128, 32)


def test_an_arm_cpu_implies_its_architecture(server):
    target = parse_target("llvm -mcpu=neoverse-n1")
    assert target.arch == "aarch64"
    assert "dotprod" in target.features
    musl = parse_target("llvm -mtriple=aarch64-linux-musl -mcpu=cortex-a76 -mattr=+bf16")
    assert musl.triple == "aarch64-unknown-linux-musl"
    assert {"bf16", "dotprod"} <= musl.features


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("", "there is no such backend", "native, llvm"),
        ("vulkan", "there is no such backend", "native, llvm"),
        ("znver4", "there is no such backend", "write 'llvm -mcpu=znver4'"),
        ("llvm 'x", "cannot be read", ""),
        ("cuda -arch=sm_70", "there is no GPU 'sm_70'", "sm_80"),
        ("cuda -arch=sm_90,", "there is no GPU ''", "sm_80"),
        ("native -arch=sm_90", "there is no option '-arch=sm_90'", "-mattr="),
        ("c", "not available yet", "native"),
        ("native -mcpu=haswell", "there is no option '-mcpu=haswell'", "-mattr="),
        ("llvm mcpu=haswell", "there is no option 'mcpu=haswell'", "-mcpu="),
        ("llvm -mcpu", "option '-mcpu' has no value", "-mcpu="),
        ("llvm -mcpu=", "option '-mcpu' has no value", "-mcpu="),
        ("llvm -mcpu=haswell -mcpu=znver4", "is given twice", ""),
        ("llvm -mcpu=haswel", "there is no x86_64 CPU 'haswel'", "did you mean haswell?"),
        ("llvm -mcpu=q9", "there is no x86_64 CPU 'q9'", "there are: x86-64"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=haswell", "no aarch64 CPU 'haswell'", "cortex"),
        ("llvm -mtriple=aarch64-linux-gnu -mcpu=native", "this machine is 'x86_64'", "-mcpu"),
        ("llvm -mtriple=riscv64-linux-gnu", "there is no triple", "x86_64-linux-gnu"),
        ("llvm -mtriple=x86_64-windows-gnu", "there is no triple", "x86_64-linux-gnu"),
        ("llvm -mtriple=x86_64-linux-gnux32", "there is no triple", "x86_64-linux-gnu"),
        ("llvm -mtriple=x86_64", "there is no triple", "x86_64-linux-gnu"),
        ("llvm -mattr=avx2", "'avx2' in -mattr has no sign", "+avx2 or -avx2"),
        ("llvm -mattr=+avx512", "no x86_64 feature 'avx512'", "did you mean"),
        ("llvm -mattr=+neon", "no x86_64 feature 'neon'", "there are"),
        ("llvm -mtriple=aarch64-linux-gnu -mattr=-neon", "cannot be taken away", ""),
        ("llvm -num-cores=0", "-num-cores is '0'", "at least 1"),
        ("llvm -num-cores=²", "-num-cores is '²'", "at least 1"),
        (f"llvm -num-cores={'1' * 5000}", "-num-cores is '111", "at least 1"),
    ],
)
def test_what_is_wrong_is_refused_with_a_reason(server, text, reason, hint):
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert reason in str(caught.value.fields["reason"])
    assert caught.value.fields["target"] == text
    assert hint in caught.value.hint


def test_an_unknown_host_needs_a_triple(monkeypatch):
    monkeypatch.setattr(target_parse, "host_arch", lambda: "riscv64")
    with pytest.raises(TargetError, match="this machine is 'riscv64'"):
        parse_target("native")
    assert parse_target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").arch == "x86_64"


@pytest.mark.parametrize("arch", sorted(IMPLIES))
def test_the_tables_agree_with_each_other(arch):
    known = set(IMPLIES[arch])
    assert {f for implied in IMPLIES[arch].values() for f in implied} <= known
    assert set(KERNEL_NAMES[arch].values()) <= known
    for feature in known:
        assert all(feature in with_implied(arch, f) for f in with_dependent(arch, feature))
    for name, cpu in CPUS.items():
        if cpu.arch == arch:
            assert cpu.features >= BASELINE[arch]
            closed = {g for f in cpu.features for g in with_implied(arch, f)}
            assert closed == cpu.features, name


# What GCC defines for a feature. Source: GCC, "x86 Options"; Arm C Language Extensions, section 5.
MACROS = {
    "x86_64": {
        "sse3": "__SSE3__", "sse4.2": "__SSE4_2__", "popcnt": "__POPCNT__", "avx2": "__AVX2__",
        "fma": "__FMA__", "f16c": "__F16C__", "bmi2": "__BMI2__", "lzcnt": "__LZCNT__",
        "avx512f": "__AVX512F__", "avx512bw": "__AVX512BW__", "avx512vnni": "__AVX512VNNI__",
        "avx512vbmi2": "__AVX512VBMI2__", "avx512bf16": "__AVX512BF16__",
        "avx512fp16": "__AVX512FP16__", "avxvnni": "__AVXVNNI__", "amx-tile": "__AMX_TILE__",
        "amx-bf16": "__AMX_BF16__", "amx-int8": "__AMX_INT8__",
    },
    "aarch64": {
        "neon": "__ARM_NEON", "lse": "__ARM_FEATURE_ATOMICS", "rdm": "__ARM_FEATURE_QRDMX",
        "dotprod": "__ARM_FEATURE_DOTPROD", "bf16": "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC",
        "fullfp16": "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC", "sve": "__ARM_FEATURE_SVE",
        "i8mm": "__ARM_FEATURE_MATMUL_INT8", "sve2": "__ARM_FEATURE_SVE2",
        "fp16fml": "__ARM_FEATURE_FP16_FML",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CPUS))
def test_gcc_agrees_about_the_features_of_a_cpu(name):
    cpu = CPUS[name]
    compiler = shutil.which(f"{cpu.arch}-linux-gnu-gcc")
    if compiler is None:
        pytest.skip(f"needs {cpu.arch}-linux-gnu-gcc")
    flag = "-march" if cpu.arch == "x86_64" else "-mcpu"
    command = [compiler, f"{flag}={name}", "-dM", "-E", "-"]
    done = subprocess.run(command, input="", capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this GCC does not know {name}")
    defined = {line.split()[1] for line in done.stdout.splitlines()}
    expected = {f: f in cpu.features for f in MACROS[cpu.arch]}
    assert {f: macro in defined for f, macro in MACROS[cpu.arch].items()} == expected


CPUINFO = """\
processor\t: 0
model name\t: Some CPU
flags\t\t: fpu pni ssse3 sse4_1 sse4_2 popcnt abm avx avx2 fma f16c bmi1 avx512f avx512vl \
avx512_vnni avx512vbmi amx_int8 hypervisor

processor\t: 1
flags\t\t: fpu
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_features_caches_and_cores_are_read_from_the_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "host_arch", lambda: "x86_64")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    write(tmp_path / "proc/cpuinfo", CPUINFO)
    for number, (level, kind, size) in enumerate(
        [("1", "Instruction", "64K"), ("1", "Data", "48K"), ("2", "Unified", "2048K")]
    ):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{number}"
        write(folder / "level", level + "\n")
        write(folder / "type", kind + "\n")
        write(folder / "size", size + "\n")
    for cpu in range(4):
        siblings = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(siblings, f"{cpu % 3}\n")
    found = read_machine(tmp_path)
    # avx512vbmi needs avx512bw and amx-int8 needs amx-tile, which are not there.
    assert found.features == {
        "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "lzcnt", "bmi", "avx", "avx2", "fma",
        "f16c", "avx512f", "avx512vl", "avx512vnni",
    }  # fmt: skip
    assert (found.l1_bytes, found.l2_bytes, found.cores) == (48 * 1024, 2048 * 1024, 3)


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 25\n", True),
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\n", False),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 25\n", False),
        ("", False),
    ],
)
def test_who_works_on_wide_vectors_in_halves_is_read(tmp_path, monkeypatch, about, expected):
    monkeypatch.setattr(machine, "host_arch", lambda: "x86_64")
    write(tmp_path / "proc/cpuinfo", about + CPUINFO)
    assert read_machine(tmp_path).in_halves is expected
    write(tmp_path / "proc/cpuinfo", about + CPUINFO.replace("avx512f", ""))
    assert not read_machine(tmp_path).in_halves


@pytest.mark.parametrize(("model", "expected"), [("106", True), ("108", True), ("143", False)])
def test_who_loads_few_vectors_in_a_cycle_is_read(tmp_path, monkeypatch, model, expected):
    monkeypatch.setattr(machine, "host_arch", lambda: "x86_64")
    about = f"vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\n"
    write(tmp_path / "proc/cpuinfo", about + CPUINFO)
    assert read_machine(tmp_path).few_loads is expected
    write(tmp_path / "proc/cpuinfo", about + CPUINFO.replace("avx512f", ""))
    assert not read_machine(tmp_path).few_loads


def test_few_loads_count_where_vectors_are_wide():
    assert parse_target("llvm -mcpu=icelake-server").vector_loads < 1.2
    assert parse_target("llvm -mcpu=icelake-server -mattr=-avx512f").vector_loads == 2
    assert parse_target("llvm -mcpu=sapphirerapids").vector_loads == 2
    for name in ("icelake-server", "znver5"):
        target = parse_target(f"llvm -mcpu={name}")
        data = target_to_json(target)
        assert ("few_loads" in data) is (name == "icelake-server")  # older records do not tell
        assert target_from_json(data).few_loads is target.few_loads


def test_halves_count_where_vectors_are_wide():
    assert parse_target("llvm -mcpu=znver4").multiply_adds == 1
    assert parse_target("llvm -mcpu=znver4 -mattr=-avx512f").multiply_adds == 2
    assert parse_target("llvm -mcpu=znver5").multiply_adds == 2
    for name in ("znver4", "icelake-server"):
        target = parse_target(f"llvm -mcpu={name}")
        data = target_to_json(target)
        assert ("in_halves" in data) is (name == "znver4")  # older records do not tell
        assert target_from_json(data).in_halves is target.in_halves


@pytest.mark.parametrize(
    ("about", "features", "expected"),
    [
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\n", "avx512_bf16 avx512_fp16", True),
        ("vendor_id\t: GenuineIntel\ncpu family\t: 6\n", "avx512_bf16", False),  # Cooper Lake
        ("vendor_id\t: AuthenticAMD\ncpu family\t: 26\n", "avx512_bf16 avx512_fp16", False),
    ],
)
def test_whose_pairs_are_slow_is_read(tmp_path, monkeypatch, about, features, expected):
    monkeypatch.setattr(machine, "host_arch", lambda: "x86_64")
    listed = CPUINFO.replace("avx512f", f"avx512f avx512bw avx512dq avx512vl {features}")
    write(tmp_path / "proc/cpuinfo", about + listed)
    assert read_machine(tmp_path).slow_pairs is expected


def test_pairs_of_bf16_count_where_they_are_fast():
    for name, expected in (("znver4", True), ("cooperlake", True), ("sapphirerapids", False)):
        target = parse_target(f"llvm -mcpu={name} -mattr=-amx-tile,-amx-bf16,-amx-int8")
        assert target.has_pair_products is expected
        data = target_to_json(target)
        assert ("slow_pairs" in data) is not expected  # older records do not tell
        assert target_from_json(data).has_pair_products is expected
    engine = parse_target("llvm -mcpu=sapphirerapids")
    assert "slow_pairs" not in target_to_json(engine)  # whose vectors add none


@pytest.mark.parametrize(
    ("allowed", "expected"), [(True, {"amx-tile", "amx-bf16", "amx-int8"}), (False, set())]
)
def test_an_engine_that_nobody_may_use_is_none(tmp_path, monkeypatch, allowed, expected):
    monkeypatch.setattr(machine, "host_arch", lambda: "x86_64")
    monkeypatch.setattr(machine, "may_use_tiles", lambda: allowed)
    flags = CPUINFO.replace("amx_int8", "amx_int8 amx_bf16 amx_tile")
    write(tmp_path / "proc/cpuinfo", flags)
    found = read_machine(tmp_path)
    assert {name for name in found.features if name.startswith("amx")} == expected
    assert found.name.split() == ["Some", "CPU"]


def test_this_machine_is_asked_for_tiles_only_where_its_cpu_has_some(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "host_arch", lambda: "x86_64")
    monkeypatch.setattr(machine, "may_use_tiles", lambda: pytest.fail("it was asked"))
    write(tmp_path / "proc/cpuinfo", CPUINFO)
    read_machine(tmp_path)


@pytest.mark.parametrize(
    ("text", "cycles"),
    [
        ("native", 37),
        ("llvm", 37),
        ("native -mattr=-amx-int8", 37),
        ("native -tile-cycles=30", 30),
        ("native -mattr=-amx-bf16", TILE_CYCLES),
        ("llvm -mcpu=sapphirerapids", TILE_CYCLES),
        ("llvm -mcpu=sapphirerapids -tile-cycles=30", 30),
        ("llvm -mtriple=aarch64-linux-gnu", TILE_CYCLES),
        ("cuda -mcpu=native", TILE_CYCLES),
    ],
)
def test_the_engine_of_this_machine_is_measured(server, monkeypatch, text, cycles):
    engine = replace(SERVER, features=CPUS["sapphirerapids"].features)
    monkeypatch.setattr(target_parse, "read_machine", lambda: engine)
    found = parse_target(text, measure=lambda target: 37)
    assert found.tile_cycles == cycles
    assert target_from_json(target_to_json(found)).tile_cycles == cycles
    assert ("tile_cycles" in target_to_json(found)) is (cycles != TILE_CYCLES)


def test_arm_features_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "host_arch", lambda: "aarch64")
    write(tmp_path / "proc/cpuinfo", "Features\t: fp asimd atomics asimdrdm fphp asimdhp asimddp\n")
    found = read_machine(tmp_path)
    assert found.features == {"neon", "lse", "rdm", "fullfp16", "dotprod"}
    assert (found.l1_bytes, found.l2_bytes) == (None, None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/a/b\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n2:memory:/m\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
)
def test_a_cgroup_quota_bounds_the_cores(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, text in files.items():
        write(tmp_path / name, text)
    assert usable_cores(tmp_path) == expected


def test_this_machine_can_be_described():
    if host_arch() not in IMPLIES:
        pytest.skip(f"dlc does not compile for {host_arch()}")
    target = parse_target("native")
    assert target.cores >= 1
    assert target.l1_bytes < target.l2_bytes


@pytest.mark.parametrize("arch", sorted(IMPLIES))
def test_the_loader_can_check_every_feature(arch):
    source = Path(__file__).parents[2] / "dlc/runtime/cpp/src/cpu_features.cc"
    checked = set(re.findall(r'\{"([^"]+)"', source.read_text()))
    assert set(IMPLIES[arch]) <= checked


def test_a_gpu_is_named_by_its_architecture() -> None:
    both = parse_target("cuda")
    assert both.backend == "cuda"
    assert both.gpu is not None
    assert both.gpu.archs == ("sm_80", "sm_90")
    assert both.gpu.processors == 108  # the fewest of the two
    one = parse_target("cuda -arch=sm_90")
    assert one.gpu is not None
    assert (one.gpu.archs, one.gpu.processors) == (("sm_90",), 132)
    assert parse_target("native").gpu is None


def test_a_gpu_is_plugged_into_any_machine() -> None:
    assert parse_target("cuda").features == parse_target("llvm -mcpu=x86-64").features
    assert "avx2" in parse_target("cuda -mcpu=haswell").features
    assert parse_target("cuda -mtriple=aarch64-linux-gnu").arch == "aarch64"
