// The few calls of TorchScript that the crate makes, as C functions. Tensors go out as pointers of the caller's own, which
// it deletes as tch does its tensors.

#include <cstdint>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include "guarded.hpp"

using zagros::guarded;

struct ZagrosModule {
  torch::jit::Module module;
};

extern "C" {

// A module of the bytes that torch.jit.save writes, on a device such as "cpu" or "cuda:0".
int zagros_module_load(
    const char* bytes,
    size_t length,
    const char* device,
    ZagrosModule** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    std::istringstream stream(std::string(bytes, length));
    *out = std::make_unique<ZagrosModule>(torch::jit::load(stream, c10::Device(device))).release();
  });
}

void zagros_module_free(ZagrosModule* module) {
  delete module;
}

// Gives each parameter, or each buffer, by its name to `take`, which owns the tensor then.
int zagros_module_tensors(
    const ZagrosModule* module,
    bool buffers,
    void* to,
    void (*take)(void* to, const char* name, at::Tensor* tensor),
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    const auto give = [&](const auto& named) {
      for (const auto& [name, tensor] : named) {
        take(to, name.c_str(), std::make_unique<at::Tensor>(tensor).release());
      }
    };
    buffers ? give(module->module.named_buffers()) : give(module->module.named_parameters());
  });
}

// Makes this the buffer of that name, which may be one of a module within: "norm.running_mean".
int zagros_module_set_buffer(
    ZagrosModule* module,
    const char* name,
    const at::Tensor* tensor,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    std::string rest = name;
    torch::jit::Module owner = module->module;
    for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
      owner = owner.attr(rest.substr(0, dot)).toModule();
      rest.erase(0, dot + 1);
    }
    owner.setattr(rest, *tensor);
  });
}

int zagros_module_train(ZagrosModule* module, bool on, char* why, size_t room) {
  return guarded(why, room, [&] { module->module.train(on); });
}

int zagros_module_forward(
    ZagrosModule* module,
    const at::Tensor* const* inputs,
    size_t count,
    at::Tensor** out,
    char* why,
    size_t room) {
  return guarded(why, room, [&] {
    std::vector<torch::jit::IValue> values;
    for (size_t i = 0; i < count; ++i) {
      values.emplace_back(*inputs[i]);
    }
    const torch::jit::IValue output = module->module.forward(std::move(values));
    if (!output.isTensor()) {
      throw std::runtime_error("gives " + output.tagKind() + ", no tensor");
    }
    *out = std::make_unique<at::Tensor>(output.toTensor()).release();
  });
}

} // extern "C"
