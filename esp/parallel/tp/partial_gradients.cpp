#include <functional>
#include <vector>

#include "esp/device/gpu.h"
#include "esp/parallel/model_parallel_ops.h"
#include "esp/parallel/tp/tp_communicator.h"

namespace esp::parallel {
namespace {

using tensor::Tensor;

// Sums partial gradients over the tensor axis. It replaces the `on_ready` callback of each weight with a partial
// gradient and calls the original callback after the sum. All ranks of the axis run the same tape, so units complete in
// the same order on all ranks.
class TpGradientReducer final : public PartialGradients {
 public:
  TpGradientReducer(const Mesh& mesh, nn::ParameterList& parameters, const tensor::Context& context, Duration timeout)
      : context_(context), tp_comm_(*mesh.group(MeshAxis::tensor), timeout, nullptr) {
    units_.resize(parameters.units().size());
    for (size_t u = 0; u < units_.size(); ++u)
      for (nn::Parameter* p : parameters.units()[u].parameters) {
        if (!p->partial || !p->weight.trained) continue;
        const size_t index = units_[u].size();
        units_[u].push_back({&p->weight, std::move(p->weight.on_ready), false});
        p->weight.on_ready = [this, u, index] { arrived(units_[u], index); };
      }
  }
  ~TpGradientReducer() override {
    for (Unit& unit : units_)
      for (GradientEntry& entry : unit) entry.weight->on_ready = std::move(entry.on_ready_callback);
  }

  void begin_pass(bool gradients_leave) override {
    reduces_ = gradients_leave;
    for (Unit& unit : units_)
      for (GradientEntry& entry : unit) entry.arrived = false;
  }
  // Some units may still be incomplete because this pass did not use all of their weights. Sums the gradients of these
  // units over the tensor ranks.
  void end_pass() override {
    if (reduces_)
      for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) sum(*unit);
    reduces_ = false;
  }

 private:
  struct GradientEntry {
    autograd::Weight* weight;
    std::function<void()> on_ready_callback;
    bool arrived;
  };
  using Unit = std::vector<GradientEntry>;

  void arrived(Unit& unit, size_t index) {
    if (!reduces_) {
      if (unit[index].on_ready_callback) unit[index].on_ready_callback();
      return;
    }
    unit[index].arrived = true;
    for (const GradientEntry& entry : unit)
      if (!entry.arrived) return;
    sum(unit);
  }

  // Sums the arrived gradients of `unit` in one packed all-reduce, then calls their original `on_ready` callbacks.
  void sum(Unit& unit) {
    int64_t count = 0;
    DType type = DType::f32;
    for (const GradientEntry& entry : unit)
      if (entry.arrived) {
        count += entry.weight->gradient().count();
        type = entry.weight->grad.dtype();
      }
    if (count == 0) return;
    const Tensor packed = tensor::empty(context_, {count}, type, device::MemoryCategory::buffer);
    each(unit, packed, [this](GradientEntry& entry, std::byte* at) {
      device::copy(at, entry.weight->grad.data(), bytes(entry), context_.stream);
    });
    tp_comm_.run_all_reduce(packed);
    each(unit, packed, [this](GradientEntry& entry, std::byte* at) {
      entry.weight->gradient();
      device::copy(entry.weight->grad.data(), at, bytes(entry), context_.stream);
    });
    for (GradientEntry& entry : unit)
      if (std::exchange(entry.arrived, false) && entry.on_ready_callback) entry.on_ready_callback();
  }

  static size_t bytes(const GradientEntry& entry) { return entry.weight->grad.bytes(); }
  template <typename F>
  static void each(Unit& unit, const Tensor& packed, F f) {
    std::byte* at = packed.as<std::byte>();
    for (GradientEntry& entry : unit) {
      if (!entry.arrived) continue;
      f(entry, at);
      at += bytes(entry);
    }
  }

  tensor::Context context_;
  TpCommunicator tp_comm_;
  std::vector<Unit> units_;
  bool reduces_ = false;
};

class NoPartialGradients final : public PartialGradients {
 public:
  void begin_pass(bool) override {}
  void end_pass() override {}
};

}  // namespace

std::unique_ptr<PartialGradients> make_partial_gradients(const Mesh& mesh, nn::ParameterList& parameters,
                                                         const tensor::Context& context, Duration timeout) {
  if (!mesh.group(MeshAxis::tensor)) return std::make_unique<NoPartialGradients>();
  return std::make_unique<TpGradientReducer>(mesh, parameters, context, timeout);
}

}  // namespace esp::parallel
