// What both kinds of group share: what Rust holds. The calls of collective.cpp reach a group of Gloo and one of NCCL
// through this.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "guarded.hpp"

struct ZagrosStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

// A call under way.
struct ZagrosWork {
  virtual ~ZagrosWork() = default;
  // Waits for so long at most; answers whether the call is done. Throws what it failed with.
  virtual bool wait_for(std::chrono::milliseconds time) = 0;
  // Whether nothing touches the values any more.
  virtual bool is_done() = 0;
};

// A rank's end of a group. Values and bytes are in the machine's memory.
struct ZagrosGroup {
  virtual ~ZagrosGroup() = default;
  // Called before the end of a group that has failed: nothing of it is to be waited for any more.
  virtual void give_up() {}
  virtual std::unique_ptr<ZagrosWork> start_all_reduce(float* values, size_t length) = 0;
  // Works on copies. `all` has room for `length` bytes of each rank, in the order of the ranks; it is written by the wait that finds it
  // done.
  virtual std::unique_ptr<ZagrosWork> start_all_gather(uint8_t* mine, size_t length, uint8_t* all) = 0;
  // `bounds` has world + 1 places in the values: where each rank's part begins, and where the last one ends.
  virtual std::unique_ptr<ZagrosWork> start_reduce_scatter(float*, const size_t*) {
    throw std::runtime_error("parts are summed with Gloo only");
  }
  virtual std::unique_ptr<ZagrosWork> start_all_gather_parts(float*, const size_t*) {
    throw std::runtime_error("parts are gathered with Gloo only");
  }
};

namespace zagros {

inline at::Tensor floats(float* values, size_t length) {
  return at::from_blob(values, {static_cast<int64_t>(length)}, at::kFloat);
}

inline at::Tensor bytes(uint8_t* values, size_t length) {
  return at::from_blob(values, {static_cast<int64_t>(length)}, at::kByte);
}

} // namespace zagros
