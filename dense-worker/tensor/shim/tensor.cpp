// The functions of libtorch's tensors that the crate calls, as C functions. A tensor that a call gives is the caller's, which
// frees it. A call that can fail answers 0, or another number with the reason in `why` (guarded.hpp).

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "guarded.hpp"

using at::Tensor;
using zagros::guarded;

namespace {

// As src/scalar_type.rs numbers them.
static_assert(static_cast<int>(at::kByte) == 0 && static_cast<int>(at::kChar) == 1);
static_assert(static_cast<int>(at::kShort) == 2 && static_cast<int>(at::kInt) == 3 && static_cast<int>(at::kLong) == 4);
static_assert(static_cast<int>(at::kHalf) == 5 && static_cast<int>(at::kFloat) == 6 && static_cast<int>(at::kDouble) == 7);
static_assert(static_cast<int>(at::kComplexHalf) == 8 && static_cast<int>(at::kComplexFloat) == 9);
static_assert(static_cast<int>(at::kComplexDouble) == 10 && static_cast<int>(at::kBool) == 11);
static_assert(static_cast<int>(at::kBFloat16) == 15);

void give(Tensor** out, Tensor tensor) {
  *out = std::make_unique<Tensor>(std::move(tensor)).release();
}

// The processor is -1, a CUDA device its index.
c10::Device device_of(int index) {
  return index < 0 ? c10::Device(at::kCPU) : c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

at::TensorOptions options_of(int type, int device) {
  return at::TensorOptions().dtype(static_cast<at::ScalarType>(type)).device(device_of(device));
}

at::IntArrayRef sizes_of(const int64_t* sizes, size_t count) {
  return {sizes, count};
}

} // namespace

// Each makes a tensor of `x`, or of `x` and what else it takes.
#define ZAGROS_OF_ONE(name, expression)                                                      \
  int zagros_tensor_##name(const Tensor* x, Tensor** out, char* why, size_t room) {           \
    return guarded(why, room, [&] { give(out, expression); });                                \
  }
#define ZAGROS_OF_TWO(name, expression)                                                      \
  int zagros_tensor_##name(                                                                  \
      const Tensor* x, const Tensor* y, Tensor** out, char* why, size_t room) {               \
    return guarded(why, room, [&] { give(out, expression); });                                \
  }
// Of up to three whole numbers.
#define ZAGROS_AT(name, expression)                                                          \
  int zagros_tensor_##name(                                                                  \
      const Tensor* x,                                                                       \
      [[maybe_unused]] int64_t a,                                                            \
      [[maybe_unused]] int64_t b,                                                            \
      [[maybe_unused]] int64_t c,                                                            \
      Tensor** out,                                                                          \
      char* why,                                                                             \
      size_t room) {                                                                         \
    return guarded(why, room, [&] { give(out, expression); });                                \
  }
#define ZAGROS_SIZED(name, expression)                                                       \
  int zagros_tensor_##name(                                                                  \
      const Tensor* x, const int64_t* sizes, size_t count, Tensor** out, char* why, size_t room) { \
    return guarded(why, room, [&] { give(out, expression); });                                \
  }
// Changes `x`, which two others may take part in.
#define ZAGROS_CHANGE(name, statement)                                                       \
  int zagros_tensor_##name(                                                                  \
      Tensor* x,                                                                             \
      [[maybe_unused]] const Tensor* y,                                                      \
      [[maybe_unused]] const Tensor* z,                                                      \
      char* why,                                                                             \
      size_t room) {                                                                         \
    return guarded(why, room, [&] { statement; });                                            \
  }

extern "C" {

void zagros_tensor_free(Tensor* x) noexcept {
  delete x;
}

Tensor* zagros_tensor_share(const Tensor* x) noexcept {
  return new Tensor(*x);
}

bool zagros_tensor_defined(const Tensor* x) noexcept {
  return x->defined();
}

bool zagros_tensor_requires_grad(const Tensor* x) noexcept {
  return x->defined() && x->requires_grad();
}

bool zagros_tensor_is_contiguous(const Tensor* x) noexcept {
  return x->defined() && x->is_contiguous();
}

int zagros_tensor_type(const Tensor* x) noexcept {
  return x->defined() ? static_cast<int>(x->scalar_type()) : -1;
}

// -1 is the processor, -2 neither the processor nor CUDA.
int zagros_tensor_device(const Tensor* x) noexcept {
  if (!x->defined() || x->is_cpu()) {
    return -1;
  }
  return x->is_cuda() ? x->device().index() : -2;
}

size_t zagros_tensor_numel(const Tensor* x) noexcept {
  return x->defined() ? static_cast<size_t>(x->numel()) : 0;
}

size_t zagros_tensor_nbytes(const Tensor* x) noexcept {
  return x->defined() ? x->nbytes() : 0;
}

// How many dimensions there are; those that `room` has a place for are written.
size_t zagros_tensor_sizes(const Tensor* x, int64_t* sizes, size_t room) noexcept {
  const size_t count = x->defined() ? static_cast<size_t>(x->dim()) : 0;
  for (size_t i = 0; i < count && i < room; ++i) {
    sizes[i] = x->size(static_cast<int64_t>(i));
  }
  return count;
}

int zagros_tensor_data(const Tensor* x, void** out, char* why, size_t room) {
  return guarded(why, room, [&] { *out = x->data_ptr(); });
}

int zagros_tensor_zeros(
    const int64_t* sizes,
    size_t count,
    int type,
    int device,
    Tensor** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] { give(out, at::zeros(sizes_of(sizes, count), options_of(type, device))); });
}

// On the processor.
int zagros_tensor_of_bytes(
    const uint8_t* bytes,
    size_t length,
    const int64_t* sizes,
    size_t count,
    int type,
    Tensor** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    Tensor made = at::empty(sizes_of(sizes, count), options_of(type, -1));
    if (made.nbytes() != length) {
      throw std::runtime_error(
          "a tensor of " + std::to_string(made.nbytes()) + " bytes was to be made of " + std::to_string(length));
    }
    if (length > 0) {
      std::memcpy(made.data_ptr(), bytes, length);
    }
    give(out, std::move(made));
  });
}

// Of a tensor on the processor whose values follow each other.
int zagros_tensor_read(const Tensor* x, uint8_t* bytes, size_t length, char* why, size_t room) {
  return guarded(why, room, [&] {
    if (!x->is_cpu() || !x->is_contiguous() || x->nbytes() != length) {
      throw std::runtime_error("the values cannot be read: not contiguous on the processor, or of another length");
    }
    if (length > 0) {
      std::memcpy(bytes, x->const_data_ptr(), length);
    }
  });
}

int zagros_tensor_value(const Tensor* x, double* out, char* why, size_t room) {
  return guarded(why, room, [&] { *out = x->item().toDouble(); });
}

int zagros_tensor_cat(
    const Tensor* const* parts,
    size_t count,
    int64_t dimension,
    Tensor** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    std::vector<Tensor> all;
    for (size_t i = 0; i < count; ++i) {
      all.push_back(*parts[i]);
    }
    give(out, at::cat(all, dimension));
  });
}

int zagros_tensor_times(const Tensor* x, double factor, Tensor** out, char* why, size_t room) {
  return guarded(why, room, [&] { give(out, x->mul(factor)); });
}

// `bias` may be null.
int zagros_tensor_linear(
    const Tensor* x,
    const Tensor* weight,
    const Tensor* bias,
    Tensor** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    const std::optional<Tensor> given = bias == nullptr ? std::nullopt : std::optional<Tensor>(*bias);
    give(out, at::linear(*x, *weight, given));
  });
}

ZAGROS_OF_ONE(zeros_like, at::zeros_like(*x))
ZAGROS_OF_ONE(detach, x->detach())
ZAGROS_OF_ONE(contiguous, x->contiguous())
ZAGROS_OF_ONE(grad, x->grad())
ZAGROS_OF_ONE(t, x->t())
ZAGROS_OF_ONE(relu, x->relu())
ZAGROS_OF_ONE(square, x->square())
ZAGROS_OF_ONE(sum, x->sum())

ZAGROS_OF_TWO(add, x->add(*y))
ZAGROS_OF_TWO(sub, x->sub(*y))
ZAGROS_OF_TWO(mul, x->mul(*y))
ZAGROS_OF_TWO(mm, at::mm(*x, *y))
ZAGROS_OF_TWO(bmm, at::bmm(*x, *y))
// The mean over all values.
ZAGROS_OF_TWO(cross_entropy, at::binary_cross_entropy_with_logits(*x, *y))

ZAGROS_AT(to_type, x->to(static_cast<at::ScalarType>(a)))
ZAGROS_AT(to_device, x->to(device_of(static_cast<int>(a))))
ZAGROS_AT(narrow, x->narrow(a, b, c))
ZAGROS_AT(select, x->select(a, b))
ZAGROS_AT(transpose, x->transpose(a, b))
ZAGROS_AT(flatten, x->flatten(a, b))
ZAGROS_AT(unsqueeze, x->unsqueeze(a))
ZAGROS_AT(squeeze, x->squeeze(a))
ZAGROS_AT(sum_of, x->sum(at::IntArrayRef(a), b != 0))

ZAGROS_SIZED(reshape, x->reshape(sizes_of(sizes, count)))
ZAGROS_SIZED(view, x->view(sizes_of(sizes, count)))

int zagros_tensor_index_select(
    const Tensor* x,
    int64_t dimension,
    const Tensor* index,
    Tensor** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] { give(out, x->index_select(dimension, *index)); });
}

ZAGROS_CHANGE(copy_, x->copy_(*y))
ZAGROS_CHANGE(add_, x->add_(*y))
ZAGROS_CHANGE(addmm_, x->addmm_(*y, *z))
ZAGROS_CHANGE(mm_out, at::mm_out(*x, *y, *z))
ZAGROS_CHANGE(zero_, x->zero_())
ZAGROS_CHANGE(set_data, x->set_data(*y))
ZAGROS_CHANGE(track, x->requires_grad_(true))
ZAGROS_CHANGE(backward, x->backward())

// Whether gradients are tracked on this thread from now on; answers whether they were.
bool zagros_grad_mode(bool on) noexcept {
  const bool was = c10::GradMode::is_enabled();
  c10::GradMode::set_enabled(on);
  return was;
}

int zagros_set_threads(int threads, char* why, size_t room) {
  return guarded(why, room, [&] { at::set_num_threads(threads); });
}

int zagros_seed(uint64_t seed, char* why, size_t room) {
  return guarded(why, room, [&] { at::manual_seed(seed); });
}

// How many CUDA devices libtorch can compute on; 0 without its CUDA half.
int zagros_cuda_devices(int* out, char* why, size_t room) {
  return guarded(why, room, [&] { *out = at::detail::getCUDAHooks().deviceCount(); });
}

} // extern "C"
