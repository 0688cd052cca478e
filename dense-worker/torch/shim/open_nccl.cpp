// Opens the library of NCCL groups (nccl.cpp), whose bytes are part of the program. With the feature `nccl` only.

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nccl.hpp"

using zagros::guarded;

namespace {

// c10d's watchdog ends the whole process when a call of NCCL takes too long or CUDA fails, unless it is told otherwise by
// the environment: here it only ends the call, and the error says what it was. Set before main, while there is one
// thread, and what the user has set stays.
[[maybe_unused]] const int watchdog_is_tame = setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0) +
    setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0) + setenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0", 0) +
    setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 0);

// For the whole process, whose other libraries find its symbols; it stays open as long as the process.
void* open_library(const char* name) {
  void* library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw std::runtime_error(dlerror());
  }
  return library;
}

// A file without a name, in memory.
class Unnamed {
 public:
  Unnamed(const uint8_t* content, size_t length) : file(memfd_create("zagros_nccl", MFD_CLOEXEC)) {
    for (size_t written = 0; file >= 0 && written < length;) {
      const ssize_t more = write(file, content + written, length - written);
      if (more < 0 && errno != EINTR) {
        break;
      }
      written += more < 0 ? 0 : static_cast<size_t>(more);
      if (written == length) {
        return;
      }
    }
    const std::string reason = std::strerror(errno);
    if (file >= 0) {
      close(file);
    }
    throw std::runtime_error("its library cannot be written to memory: " + reason);
  }

  Unnamed(const Unnamed&) = delete;
  Unnamed& operator=(const Unnamed&) = delete;

  ~Unnamed() {
    close(file);
  }

  std::string path() const {
    return "/proc/self/fd/" + std::to_string(file);
  }

 private:
  int file;
};

} // namespace

extern "C" {

// The library needs libtorch's CUDA half, and finds it where it is open already (src/cuda.rs).
int zagros_nccl_open(const uint8_t* content, size_t length, const ZagrosNccl** out, char* why, size_t room) {
  return guarded(why, room, [&] {
    const Unnamed file(content, length);
    void* entry = dlsym(open_library(file.path().c_str()), ZAGROS_NCCL_ENTRY);
    if (entry == nullptr) {
      throw std::runtime_error("its library has no entry");
    }
    *out = reinterpret_cast<ZagrosNcclEntry*>(entry)();
  });
}

} // extern "C"
