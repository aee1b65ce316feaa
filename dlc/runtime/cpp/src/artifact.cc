#include "artifact.h"

#include <elf.h>

#include <cstring>
#include <utility>
#include <vector>

#include "cpu_features.h"
#include "dlc/abi.h"
#include "failure.h"
#include "hash.h"

namespace dlc_runtime {
namespace {

constexpr char kMagic[8] = {'D', 'L', 'C', 'M', 'O', 'D', 'L', '\x1a'};
constexpr std::uint32_t kContainerVersion = 2;

// The last bytes of the file, as dlc/core/manifest.py describes them.
struct Footer {
  char magic[8];
  std::uint32_t container_version;
  std::uint32_t reserved;
  std::uint64_t manifest_offset;
  std::uint64_t manifest_size;
  std::uint64_t file_size;
  std::uint64_t hash;
};
static_assert(sizeof(Footer) == 48, "the footer has no padding");

Footer read_footer(const File &file, std::uint64_t file_size) {
  Footer footer{};
  if (file_size >= sizeof footer) {
    read_exactly(file.descriptor(), file_size - sizeof footer, &footer, sizeof footer);
  }
  if (std::memcmp(footer.magic, kMagic, sizeof kMagic) != 0) {
    fail(DLC_BAD_ARTIFACT,
         "not a compiled model: the dlc trailer is missing; was the file cut short, or stripped?");
  }
  if (footer.container_version != kContainerVersion || footer.reserved != 0) {
    fail(DLC_INCOMPATIBLE, "container version " + std::to_string(footer.container_version) +
                               "; this runtime reads " + std::to_string(kContainerVersion) +
                               "; build the model again with this dlc");
  }
  if (footer.file_size != file_size) {
    fail(DLC_BAD_ARTIFACT, "damaged: it has " + std::to_string(file_size) +
                               " bytes, its footer says " + std::to_string(footer.file_size));
  }
  const std::uint64_t room = file_size - sizeof footer;
  if (footer.manifest_offset > room || footer.manifest_size != room - footer.manifest_offset) {
    fail(DLC_BAD_ARTIFACT, "damaged: the manifest is not where the footer says");
  }
  return footer;
}

// What dlopen would do with a segment outside the file is to crash the process (SIGBUS).
void check_segments(const File &file, const Elf64_Ehdr &header, std::uint64_t elf_size) {
  const std::uint64_t table_size = std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > elf_size ||
      table_size > elf_size - header.e_phoff) {
    fail(DLC_BAD_ARTIFACT, "damaged: its program headers are outside the file");
  }
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  read_exactly(file.descriptor(), header.e_phoff, segments.data(), table_size);
  for (const Elf64_Phdr &segment : segments) {
    if (segment.p_offset > elf_size || segment.p_filesz > elf_size - segment.p_offset) {
      fail(DLC_BAD_ARTIFACT, "damaged: a segment is outside the file");
    }
  }
}

void check_hash(const File &file, std::uint64_t file_size, const Footer &footer) {
  if (hash_descriptor(file.descriptor(), file_size - sizeof footer.hash) != footer.hash) {
    fail(DLC_BAD_ARTIFACT, "damaged: its content does not have the hash it was built with");
  }
}

void check_elf(const File &file, std::uint64_t elf_size) {
#if defined(__x86_64__)
  constexpr unsigned kMachine = EM_X86_64;
#else
  constexpr unsigned kMachine = EM_AARCH64;
#endif
  Elf64_Ehdr header{};
  if (elf_size < sizeof header) fail(DLC_BAD_ARTIFACT, "it holds no shared object");
  read_exactly(file.descriptor(), 0, &header, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_type != ET_DYN ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    fail(DLC_BAD_ARTIFACT, "it holds no 64-bit shared object");
  }
  if (header.e_machine != kMachine) {
    const std::string its = header.e_machine == EM_X86_64    ? "x86_64"
                            : header.e_machine == EM_AARCH64 ? "aarch64"
                                                             : "another architecture";
    fail(DLC_INCOMPATIBLE, "its code is for " + its + ", and this machine is " + architecture() +
                               "; build the model for it, or on it with --target native");
  }
  check_segments(file, header, elf_size);
}

void check_fits_machine(const Manifest &manifest) {
  if (manifest.abi_version != DLC_ABI_VERSION) {
    fail(DLC_INCOMPATIBLE, "built by dlc " + manifest.dlc_version + " for ABI " +
                               std::to_string(manifest.abi_version) + "; this runtime (" +
                               DLC_RUNTIME_VERSION + ") has ABI " +
                               std::to_string(DLC_ABI_VERSION) +
                               "; build the model again with this dlc");
  }
  if (manifest.architecture != architecture()) {
    fail(DLC_INCOMPATIBLE,
         "built for " + manifest.architecture + "; this machine is " + architecture());
  }
  std::string missing;
  for (const std::string &name : missing_features(manifest.cpu_features)) {
    missing += (missing.empty() ? "" : ", ") + name;
  }
  if (!missing.empty()) {
    fail(DLC_INCOMPATIBLE,
         "this CPU lacks " + missing + "; build the model for it, or on it with --target native");
  }
}

}  // namespace

Artifact check_artifact(File file, std::uint32_t flags) {
  const std::uint64_t size = file.size();
  const Footer footer = read_footer(file, size);
  // Read before the hash, so that the bytes used are among the bytes hashed or the file changed.
  std::string bytes(static_cast<std::size_t>(footer.manifest_size), '\0');
  read_exactly(file.descriptor(), footer.manifest_offset, bytes.data(), bytes.size());
  if ((flags & DLC_VERIFY_SKIP_HASH) == 0) check_hash(file, size, footer);
  check_elf(file, footer.manifest_offset);
  Manifest manifest = decode_manifest(bytes);
  check_fits_machine(manifest);
  return Artifact{std::move(file), std::move(bytes), std::move(manifest)};
}

void check_whole(const File &file) {
  const std::uint64_t size = file.size();
  check_hash(file, size, read_footer(file, size));
}

}  // namespace dlc_runtime
