// The few calls of c10d that the crate makes, as C functions. No exception leaves this file: each call answers 0, or 1
// with the reason in `why`. Buffers are the caller's; a call that has returned touches them no more, but for one that
// is only started: that touches them until it is waited for.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

struct ZagrosStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

struct ZagrosGroup {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

struct ZagrosWork {
  c10::intrusive_ptr<c10d::Work> work;
};

namespace {

// c10d's flight recorder keeps the last 2000 calls with their stacks, for a dump that nobody takes here. It looks its
// groups up outside its lock (recordWithResetEnabled in FlightRecorderDetail.hpp), so two groups that make their first
// calls in one process at once break its map. It reads its size once; this is set before main, while there is one
// thread, and a size that the user has set stays.
[[maybe_unused]] const int recorder_off = setenv("TORCH_FR_BUFFER_SIZE", "0", 0);

void tell(const char* text, char* why, size_t room) {
  const size_t length = std::min(std::strlen(text), room - 1);
  std::memcpy(why, text, length);
  why[length] = '\0';
}

template <typename Call>
int guarded(char* why, size_t room, Call&& call) noexcept {
  try {
    call();
    return 0;
  } catch (const c10::Error& error) {
    tell(error.what_without_backtrace(), why, room);
  } catch (const std::exception& error) {
    tell(error.what(), why, room);
  } catch (...) {
    tell("an exception that is none of the standard library's", why, room);
  }
  return 1;
}

at::Tensor floats(float* values, size_t length) {
  return at::from_blob(values, {static_cast<int64_t>(length)}, at::kFloat);
}

at::Tensor bytes(uint8_t* values, size_t length) {
  return at::from_blob(values, {static_cast<int64_t>(length)}, at::kByte);
}

} // namespace

extern "C" {

// A client of the store at host:port; its server too where `listener` is a listening socket, which it takes.
int zagros_store_open(
    const char* host,
    uint16_t port,
    int listener,
    uint64_t patience_ms,
    ZagrosStore** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    // Every failure is told by its error; c10d would log each with a stack of addresses besides.
    FLAGS_caffe2_log_level = 3;
    c10d::TCPStoreOptions options;
    options.port = port;
    options.waitWorkers = false;
    options.timeout = std::chrono::milliseconds(patience_ms);
    if (listener >= 0) {
      options.isServer = true;
      options.masterListenFd = listener;
    }
    *out = new ZagrosStore{c10::make_intrusive<c10d::TCPStore>(host, options)};
  });
}

int zagros_store_set(ZagrosStore* store, const char* key, char* why, size_t room) {
  return guarded(why, room, [&] { store->store->set(key, std::vector<uint8_t>{1}); });
}

int zagros_store_has(ZagrosStore* store, const char* key, bool* out, char* why, size_t room) {
  return guarded(why, room, [&] { *out = store->store->check({key}); });
}

void zagros_store_close(ZagrosStore* store) {
  delete store;
}

// Connects to all other ranks, over the network of the address `host`.
int zagros_group_form(
    ZagrosStore* store,
    const char* prefix,
    int rank,
    int world,
    const char* host,
    uint64_t patience_ms,
    ZagrosGroup** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::milliseconds(patience_ms));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
    // One call at a time is under way: those that are started early wait for their turn, in order.
    options->threads = 1;
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(prefix, store->store);
    *out = new ZagrosGroup{c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank, world, std::move(options))};
  });
}

// Returns at once; `values` must stay where they are until the work is done.
int zagros_group_start_all_reduce(
    ZagrosGroup* group,
    float* values,
    size_t length,
    ZagrosWork** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    std::vector<at::Tensor> tensors{floats(values, length)};
    *out = new ZagrosWork{group->group->allreduce(tensors)};
  });
}

// Without a timeout of its own: the group's ends the work, after which nothing touches the buffer.
int zagros_work_wait(ZagrosWork* work, char* why, size_t room) {
  return guarded(why, room, [&] { work->work->wait(); });
}

// Whether it has ended, in whatever way.
bool zagros_work_is_done(ZagrosWork* work) {
  return work->work->isCompleted();
}

void zagros_work_free(ZagrosWork* work) {
  delete work;
}

int zagros_group_broadcast(ZagrosGroup* group, int root, float* values, size_t length, char* why, size_t room) {
  return guarded(why, room, [&] {
    std::vector<at::Tensor> tensors{floats(values, length)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group->group->broadcast(tensors, options)->wait();
  });
}

// `all` has room for `length` bytes of each rank, in the order of the ranks.
int zagros_group_all_gather(
    ZagrosGroup* group,
    uint8_t* mine,
    size_t length,
    uint8_t* all,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    std::vector<at::Tensor> inputs{bytes(mine, length)};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int rank = 0; rank < group->group->getSize(); ++rank) {
      outputs[0].push_back(bytes(all + rank * length, length));
    }
    group->group->allgather(outputs, inputs)->wait();
  });
}

void zagros_group_leave(ZagrosGroup* group) {
  delete group;
}

} // extern "C"
