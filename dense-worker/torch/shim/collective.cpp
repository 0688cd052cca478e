// The few calls of c10d that the crate makes, as C functions. No exception leaves this file: each call answers 0, or 1
// with the reason in `why`. Buffers are the caller's; a call that has returned touches them no more, but for one that
// is only started: that touches them until it is waited for.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "group.hpp"

using zagros::bytes;
using zagros::floats;
using zagros::guarded;

namespace {

// c10d's flight recorder keeps the last 2000 calls with their stacks, for a dump that this program does not take. It looks its
// groups up outside its lock (recordWithResetEnabled in FlightRecorderDetail.hpp), so two groups that make their first
// calls in one process at once break its map. It reads its size once; this is set before main, while there is one
// thread, and a size that the user has set stays.
[[maybe_unused]] const int recorder_off = setenv("TORCH_FR_BUFFER_SIZE", "0", 0);

using Work = c10::intrusive_ptr<c10d::Work>;

// One or more calls of c10d.
struct GlooWork : ZagrosWork {
  GlooWork(std::vector<Work> works, std::function<void()> finish) : works(std::move(works)), finish(std::move(finish)) {}

  // c10d throws when the time is over, too. The group's own timeout ends the work, after which nothing touches the buffer.
  bool wait_for(std::chrono::milliseconds time) override {
    for (const Work& work : works) {
      if (!work->isCompleted()) {
        try {
          work->wait(time);
        } catch (...) {
          if (!work->isCompleted()) {
            return false;
          }
        }
      }
    }
    // At once, with the error if there was one.
    for (const Work& work : works) {
      work->wait();
    }
    finish();
    return true;
  }

  bool is_done() override {
    return std::all_of(works.begin(), works.end(), [](const Work& work) { return work->isCompleted(); });
  }

  std::vector<Work> works;
  std::function<void()> finish;
};

std::unique_ptr<ZagrosWork> one(Work work, std::function<void()> finish) {
  return std::make_unique<GlooWork>(std::vector<Work>{std::move(work)}, std::move(finish));
}

struct GlooGroup : ZagrosGroup {
  explicit GlooGroup(c10::intrusive_ptr<c10d::ProcessGroupGloo> group) : group(std::move(group)) {}

  std::unique_ptr<ZagrosWork> start_all_reduce(float* values, size_t length) override {
    std::vector<at::Tensor> tensors{floats(values, length)};
    return one(group->allreduce(tensors), [] {});
  }

  std::unique_ptr<ZagrosWork> start_all_gather(uint8_t* mine, size_t length, uint8_t* all) override {
    const size_t world = static_cast<size_t>(group->getSize());
    std::vector<at::Tensor> inputs{bytes(mine, length).clone()};
    at::Tensor copy = at::empty({static_cast<int64_t>(length * world)}, at::kByte);
    std::vector<std::vector<at::Tensor>> outputs{copy.chunk(static_cast<int64_t>(world))};
    auto work = group->allgather(outputs, inputs);
    return one(std::move(work), [=, copy = std::move(copy)] { bytes(all, length * world).copy_(copy); });
  }

  // Each rank sends every other rank its part, and adds up what it gets in the order of the ranks.
  std::unique_ptr<ZagrosWork> start_reduce_scatter(float* values, const size_t* bounds) override {
    const int world = group->getSize(), rank = group->getRank();
    const auto length = [&](int of) { return static_cast<int64_t>(bounds[of + 1] - bounds[of]); };
    const int64_t own = length(rank);
    std::vector<int64_t> sent, received(world, own);
    for (int of = 0; of < world; of++) {
      sent.push_back(length(of));
    }
    at::Tensor input = floats(values + bounds[0], bounds[world] - bounds[0]);
    at::Tensor output = at::empty({world * own}, at::kFloat);
    auto work = group->alltoall_base(output, input, received, sent);
    at::Tensor sum = floats(values + bounds[rank], own);
    return one(std::move(work), [=] {
      sum.copy_(output.narrow(0, 0, own));
      for (int of = 1; of < world; of++) {
        sum.add_(output.narrow(0, of * own, own));
      }
    });
  }

  // Each rank broadcasts its part from where it is to where it belongs.
  std::unique_ptr<ZagrosWork> start_all_gather_parts(float* values, const size_t* bounds) override {
    std::vector<Work> works;
    for (int rank = 0; rank < group->getSize(); rank++) {
      if (bounds[rank + 1] > bounds[rank]) {
        std::vector<at::Tensor> part{floats(values + bounds[rank], bounds[rank + 1] - bounds[rank])};
        c10d::BroadcastOptions options;
        options.rootRank = rank;
        works.push_back(group->broadcast(part, options));
      }
    }
    return std::make_unique<GlooWork>(std::move(works), [] {});
  }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
};

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
    *out = new GlooGroup(c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, rank, world, std::move(options)));
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
  return guarded(why, room, [&] { *out = group->start_all_reduce(values, length).release(); });
}

// For so long at most; `done` tells whether it is.
int zagros_work_wait(ZagrosWork* work, uint64_t millis, bool* done, char* why, size_t room) {
  return guarded(why, room, [&] { *done = work->wait_for(std::chrono::milliseconds(millis)); });
}

// Whether it has ended, in whatever way.
bool zagros_work_is_done(ZagrosWork* work) {
  return work->is_done();
}

void zagros_work_free(ZagrosWork* work) {
  delete work;
}

// `all` has room for `length` bytes of each rank, in the order of the ranks; it is written by the wait that finds it done.
int zagros_group_start_all_gather(
    ZagrosGroup* group,
    uint8_t* mine,
    size_t length,
    uint8_t* all,
    ZagrosWork** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] { *out = group->start_all_gather(mine, length, all).release(); });
}

// Rank r's part of the values is `bounds[r] .. bounds[r + 1]`. Returns at once, as a sum. This rank's part becomes its sum over all
// ranks, and the other parts hold anything then; or, where it gathers, the parts of the other ranks become theirs.
int zagros_group_start_parts(
    ZagrosGroup* group,
    bool gathers,
    float* values,
    const size_t* bounds,
    ZagrosWork** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    auto work = gathers ? group->start_all_gather_parts(values, bounds) : group->start_reduce_scatter(values, bounds);
    *out = work.release();
  });
}

int zagros_group_give_up(ZagrosGroup* group, char* why, size_t room) {
  return guarded(why, room, [&] { group->give_up(); });
}

void zagros_group_leave(ZagrosGroup* group) {
  delete group;
}

} // extern "C"
