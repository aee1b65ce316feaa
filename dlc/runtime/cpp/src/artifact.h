// The file of a compiled model, checked before any of it runs.
#ifndef DLC_SRC_ARTIFACT_H
#define DLC_SRC_ARTIFACT_H

#include <cstdint>
#include <string>

#include "file.h"
#include "manifest.h"

namespace dlc_runtime {

struct Artifact {
  File file;
  std::string manifest_bytes;
  Manifest manifest;
};

// Takes the file and checks size, footer, hash (unless skipped), ELF header, manifest, ABI,
// architecture and CPU features. Throws Failure. The order matters: each check makes the next safe.
Artifact check_artifact(File file, std::uint32_t flags);

// Checks size, footer and hash alone. Throws Failure.
void check_whole(const File &file);

}  // namespace dlc_runtime
#endif
