"""What code is generated for. Facts about hardware live here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

MATRIX_ENGINE = frozenset({"amx-bf16", "avx512bf16"})
TILE_CYCLES = 23
"""What a product of tiles takes with real data, which heats an engine: it takes 18 of zeros.

Source: measurements on a Xeon of 3.4 to 4.0 GHz; codegen/llvm/engine_rate.py measures others.
"""
FEW_VECTOR_LOADS = 1.15
"""Vectors of 512 bits that are loaded in a cycle where they are few: 1.1, and the first of a tile
are loaded while those before are multiplied. By 1.1, tiles of 7 by 3 would be better than those of
14 by 2, which read columns half as often: MobileNetV1 took 1.06 times as long.
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What all the GPUs that code is generated for have in common.

    Source: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability".
    """

    archs: tuple[str, ...] = ("sm_80", "sm_90")
    threads: int = 1024  # of one block
    shared_bytes: int = 99 * 1024  # of one block, by sm_86, sm_89 and sm_120
    registers: int = 65536  # of one block, 32 bits each
    copy_bytes: int = 16  # that tensors begin at multiples of: the most that one copy brings
    processors: int = 108  # how many blocks run at the same time at least; A100, H100 has 132


@dataclass(frozen=True, slots=True)
class Target:
    """One machine, described by its features. `parse_target` (core/target_parse.py) makes one."""

    backend: str = "llvm"  # "llvm" or "cuda"; "c" later
    triple: str = "x86_64-unknown-linux-gnu"
    cpu: str = "x86-64"  # LLVM's name, for tuning only; what may be used is in `features`
    features: frozenset[str] = frozenset()  # LLVM feature names, as "avx512f"
    cores: int = 1
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    thread_operations: int = 4096
    """Vector instructions that threads must share at least: waking and awaiting the other threads
    takes 0.3 to 0.8 us on a quiet machine, and one thread is done with these in 1 to 2 us."""
    in_halves: bool = False  # whether it works on vectors of 512 bits in two halves
    slow_pairs: bool = False
    """Whether its vectors add products of pairs of bf16 more slowly than those of floats."""
    few_loads: bool = False  # whether it loads little more than one vector of 512 bits in a cycle
    tile_cycles: int = TILE_CYCLES
    """Cycles of multiply-adds, as many as start in each, that pass while the matrix engine adds one
    product of 16 by 32 and 32 by 16 bf16, if there is an engine; it has as many of twice as many
    bytes."""
    gpu: Gpu | None = None  # of backend "cuda"; everything above is then about its host

    @property
    def arch(self) -> str:
        """`x86_64` or `aarch64`."""
        return self.triple.split("-", 1)[0]

    @property
    def vector_bits(self) -> int:
        """Width of the widest vector register; of a GPU, of 32-bit registers of one warp."""
        if self.gpu is not None:
            return 1024
        if "avx512f" in self.features:
            return 512
        return 256 if "avx2" in self.features else 128

    @property
    def vector_registers(self) -> int:
        """Number of vector registers."""
        return 32 if "avx512f" in self.features or self.arch == "aarch64" else 16

    @property
    def multiply_adds(self) -> int:
        """How many multiply-adds of its widest vectors start in a cycle, beside two loads."""
        return 1 if self.in_halves and self.vector_bits == 512 else 2

    @property
    def vector_loads(self) -> float:
        """How many of its widest vectors, or broadcasts to them, it loads in a cycle."""
        return FEW_VECTOR_LOADS if self.few_loads and self.vector_bits == 512 else 2.0

    @property
    def has_matrix_engine(self) -> bool:
        """Whether it multiplies tiles of bf16, and its vectors convert to that."""
        return self.features >= MATRIX_ENGINE

    @property
    def has_byte_engine(self) -> bool:
        """Whether it multiplies tiles of bytes."""
        return "amx-int8" in self.features

    @property
    def has_pair_products(self) -> bool:
        """Whether its vectors add products of pairs of bf16 in less time than those of floats."""
        return "avx512bf16" in self.features and not self.slow_pairs

    @property
    def byte_products(self) -> int:
        """How many products of bytes its vectors add in each lane: 4, 2 once widened, or 0."""
        is_wide = "avx512f" in self.features
        if ("avx512vnni" if is_wide else "avxvnni") in self.features:
            return 4
        return 2 if ("avx512bw" if is_wide else "avx2") in self.features else 0

    def adds_words(self, bits: int) -> bool:
        """Whether its vectors multiply signed bytes by numbers of `bits` bits, which lie in words.

        Two products of whole bytes do not fit into the 16 bits in which they are added.
        """
        return self.byte_products == 4 or (self.byte_products == 2 and bits < 8)

    def lanes(self, element_bytes: int = 4) -> int:
        """How many elements one vector register holds."""
        return self.vector_bits // (8 * element_bytes)
