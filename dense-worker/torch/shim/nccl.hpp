// What the library of NCCL groups offers to the program that opens it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "group.hpp"

struct ZagrosNccl {
  // How many devices CUDA shows to this process, one at least.
  int (*devices)(int* out, char* why, size_t room);
  // Connects to all other ranks, and lets no call wait for longer than `patience_ms`. Blocks until all are connected.
  int (*form)(
      ZagrosStore* store,
      const char* prefix,
      int rank,
      int world,
      uint64_t patience_ms,
      ZagrosGroup** out,
      char* why,
      size_t room);
};

// Of the only symbol that the library exports.
using ZagrosNcclEntry = const ZagrosNccl*();
#define ZAGROS_NCCL_ENTRY "zagros_nccl"
