#include "file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "dlc/runtime.h"
#include "failure.h"
#include "hash.h"

namespace dlc_runtime {
namespace {

[[noreturn]] void fail_errno(const std::string &what) {
  fail(DLC_NOT_FOUND, what + ": " + std::strerror(errno));
}

struct stat status_of(int descriptor) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) fail_errno("cannot examine the file");
  return status;
}

}  // namespace

File::~File() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::uint64_t File::size() const {
  return static_cast<std::uint64_t>(status_of(descriptor_).st_size);
}

File File::open(const char *path) {
  // O_NONBLOCK: opening a pipe nobody writes to must not hang.
  File file(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.descriptor() < 0) fail_errno("cannot open it");
  if (!S_ISREG(status_of(file.descriptor()).st_mode)) {
    fail(DLC_BAD_ARTIFACT, "it is not a regular file");
  }
  return file;
}

File File::of_bytes(const void *data, std::size_t size) {
  File file(memfd_create("dlc_model", MFD_CLOEXEC));
  if (file.descriptor() < 0) fail_errno("cannot make a file in memory");
  const auto *bytes = static_cast<const char *>(data);
  for (std::size_t done = 0; done < size;) {
    const ssize_t written = write(file.descriptor(), bytes + done, size - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(DLC_NO_MEMORY, "cannot copy the model into memory");
    done += static_cast<std::size_t>(written);
  }
  return file;
}

void read_exactly(int descriptor, std::uint64_t offset, void *out, std::size_t size) {
  auto *bytes = static_cast<char *>(out);
  while (size > 0) {
    const ssize_t got = pread(descriptor, bytes, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("cannot read it");
    if (got == 0) fail(DLC_BAD_ARTIFACT, "damaged: it ends too early");
    bytes += got;
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
}

}  // namespace dlc_runtime

dlc_status dlc_hash_file(const char *path, uint64_t *out) {
  using namespace dlc_runtime;
  return guarded([&] {
    if (path == nullptr || out == nullptr) fail(DLC_INVALID_ARGUMENT, "an argument is NULL");
    const File file = File::open(path);
    *out = hash_descriptor(file.descriptor(), file.size());
  });
}
