// Groups over c10d's NCCL, as a library of its own: it needs libtorch's CUDA half, which the program does without until
// a job asks for it. Values come from the machine's memory and go back there: copied to the device, summed and copied
// back, on a stream that is the group's own.

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "nccl.hpp"

using zagros::bytes;
using zagros::floats;
using zagros::guarded;

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Between two looks at whether the device is done.
constexpr auto POLL = std::chrono::microseconds(20);

// What goes with every call of a group.
struct Place {
  c10::cuda::CUDAStream stream;
  milliseconds patience;

  at::Device device() const {
    return stream.device();
  }

  // Waits for `time` at most; answers whether the work is done. Work::wait alone would only make the stream wait, and the
  // copy that follows it would have no deadline.
  bool finish_within(c10d::Work& work, milliseconds time) const {
    const auto deadline = Clock::now() + time;
    while (!work.isCompleted()) {
      if (Clock::now() >= deadline) {
        return false;
      }
      std::this_thread::sleep_for(POLL);
    }
    if (work.exception()) {
      std::rethrow_exception(work.exception());
    }
    work.wait();
    return true;
  }

  // Waits for the patience at most.
  void finish(c10d::Work& work) const {
    if (!finish_within(work, patience)) {
      late();
    }
  }

  [[noreturn]] void late() const {
    throw std::runtime_error("the device was not done in " + std::to_string(patience.count()) + " ms");
  }
};

// What was done before it was asked for.
struct DoneWork : ZagrosWork {
  bool wait_for(milliseconds) override {
    return true;
  }

  bool is_done() override {
    return true;
  }
};

// Touches the caller's values only in wait_for(): until then the device works on a copy.
struct NcclWork : ZagrosWork {
  NcclWork(Place place, at::Tensor host, at::Tensor device, c10::intrusive_ptr<c10d::Work> work)
      : place(std::move(place)), host(std::move(host)), device(std::move(device)), work(std::move(work)) {}

  // The patience counts from the first wait.
  bool wait_for(milliseconds time) override {
    const c10::cuda::CUDAStreamGuard guard(place.stream);
    if (!started) {
      started = Clock::now();
    }
    if (!place.finish_within(*work, time)) {
      if (Clock::now() - *started >= place.patience) {
        place.late();
      }
      return false;
    }
    host.copy_(device);
    return true;
  }

  bool is_done() override {
    return true;
  }

  Place place;
  at::Tensor host;
  at::Tensor device;
  c10::intrusive_ptr<c10d::Work> work;
  std::optional<Clock::time_point> started;
};

struct NcclGroup : ZagrosGroup {
  NcclGroup(Place place, c10::intrusive_ptr<c10d::ProcessGroupNCCL> group)
      : place(std::move(place)), group(std::move(group)) {}

  // Finishes what is under way, so that no other rank loses it.
  ~NcclGroup() override {
    char why[1];
    guarded(why, sizeof(why), [&] {
      if (!given_up) {
        group->shutdown();
      }
    });
  }

  void give_up() override {
    given_up = true;
    group->abort();
  }

  std::unique_ptr<ZagrosWork> start_all_reduce(float* values, size_t length) override {
    const c10::cuda::CUDAStreamGuard guard(place.stream);
    at::Tensor host = floats(values, length);
    std::vector<at::Tensor> tensors{host.to(place.device())};
    auto work = group->allreduce(tensors);
    return std::make_unique<NcclWork>(place, std::move(host), tensors[0], std::move(work));
  }

  std::unique_ptr<ZagrosWork> start_all_gather(uint8_t* mine, size_t length, uint8_t* all) override {
    const c10::cuda::CUDAStreamGuard guard(place.stream);
    at::Tensor host = bytes(all, length * static_cast<size_t>(group->getSize()));
    at::Tensor input = bytes(mine, length).to(place.device());
    at::Tensor output = at::empty(host.sizes(), host.options().device(place.device()));
    place.finish(*group->_allgather_base(output, input));
    host.copy_(output);
    return std::make_unique<DoneWork>();
  }

  Place place;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group;
  bool given_up = false;
};

int devices(int* out, char* why, size_t room) {
  return guarded(why, room, [&] {
    const cudaError_t error = cudaGetDeviceCount(out);
    if (error != cudaSuccess || *out == 0) {
      throw std::runtime_error(error == cudaSuccess ? "there is none" : cudaGetErrorString(error));
    }
  });
}

int form(
    ZagrosStore* store,
    const char* prefix,
    int rank,
    int world,
    uint64_t patience_ms,
    ZagrosGroup** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    const milliseconds patience(patience_ms);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = patience;
    auto prefixed = c10::make_intrusive<c10d::PrefixStore>(prefix, store->store);
    // Says so itself where there is no device.
    auto group = c10::make_intrusive<c10d::ProcessGroupNCCL>(prefixed, rank, world, std::move(options));
    // The workers of a machine have consecutive ranks.
    const auto device = static_cast<c10::DeviceIndex>(rank % c10::cuda::device_count_ensure_non_zero());
    Place place{c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device), patience};
    auto formed = std::make_unique<NcclGroup>(std::move(place), std::move(group));
    // The first call connects the ranks; later ones then only queue their work.
    float one = 1;
    if (!formed->start_all_reduce(&one, 1)->wait_for(patience)) {
      formed->place.late();
    }
    *out = formed.release();
  });
}

} // namespace

extern "C" __attribute__((visibility("default"))) const ZagrosNccl* zagros_nccl() {
  static const ZagrosNccl offered{devices, form};
  return &offered;
}
