#include <functional>
#include <vector>

#include "esp/device/gpu.h"
#include "esp/parallel/regions.h"
#include "esp/parallel/tp/tp_communicator.h"

namespace esp::parallel {
namespace {

using tensor::Tensor;

// Sits between a weight and the consumer of its gradient. All ranks of the axis run the same tape, so units complete in
// the same order on all ranks.
class SummedParts final : public PartialGradients {
 public:
  SummedParts(const Mesh& mesh, nn::ParameterList& parameters, const tensor::Context& context, Duration timeout)
      : context_(context), tp_comm_(*mesh.group(MeshAxis::tensor), timeout, nullptr) {
    units_.resize(parameters.units().size());
    for (size_t u = 0; u < units_.size(); ++u)
      for (nn::Parameter* p : parameters.units()[u].parameters) {
        if (!p->partial || !p->weight.trained) continue;
        const size_t place = units_[u].size();
        units_[u].push_back({&p->weight, std::move(p->weight.on_ready), false});
        p->weight.on_ready = [this, u, place] { arrived(units_[u], place); };
      }
  }
  ~SummedParts() override {
    for (Unit& unit : units_)
      for (Part& part : unit) part.weight->on_ready = std::move(part.told);
  }

  void begin_pass(bool gradients_leave) override {
    leaving_ = gradients_leave;
    for (Unit& unit : units_)
      for (Part& part : unit) part.arrived = false;
  }
  // The remaining units have a weight that was not used in this pass.
  void end_pass() override {
    if (leaving_)
      for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) sum(*unit);
    leaving_ = false;
  }

 private:
  struct Part {
    autograd::Weight* weight;
    std::function<void()> told;
    bool arrived;
  };
  using Unit = std::vector<Part>;

  void arrived(Unit& unit, size_t place) {
    if (!leaving_) {
      if (unit[place].told) unit[place].told();
      return;
    }
    unit[place].arrived = true;
    for (const Part& part : unit)
      if (!part.arrived) return;
    sum(unit);
  }

  // One packed all-reduce for all complete units; then their `on_ready` callbacks run.
  void sum(Unit& unit) {
    int64_t count = 0;
    DType type = DType::f32;
    for (const Part& part : unit)
      if (part.arrived) {
        count += part.weight->gradient().count();
        type = part.weight->grad.dtype();
      }
    if (count == 0) return;
    const Tensor packed = tensor::empty(context_, {count}, type, device::MemoryCategory::buffer);
    each(unit, packed, [this](Part& part, std::byte* at) {
      device::copy(at, part.weight->grad.data(), bytes(part), context_.stream);
    });
    tp_comm_.run_all_reduce(packed);
    each(unit, packed, [this](Part& part, std::byte* at) {
      part.weight->gradient();
      device::copy(part.weight->grad.data(), at, bytes(part), context_.stream);
    });
    for (Part& part : unit)
      if (std::exchange(part.arrived, false) && part.told) part.told();
  }

  static size_t bytes(const Part& part) { return part.weight->grad.bytes(); }
  template <typename F>
  static void each(Unit& unit, const Tensor& packed, F f) {
    std::byte* at = packed.as<std::byte>();
    for (Part& part : unit) {
      if (!part.arrived) continue;
      f(part, at);
      at += bytes(part);
    }
  }

  tensor::Context context_;
  TpCommunicator tp_comm_;
  std::vector<Unit> units_;
  bool leaving_ = false;
};

class NothingPartial final : public PartialGradients {
 public:
  void begin_pass(bool) override {}
  void end_pass() override {}
};

}  // namespace

std::unique_ptr<PartialGradients> make_partial_gradients(const Mesh& mesh, nn::ParameterList& parameters,
                                                         const tensor::Context& context, Duration timeout) {
  if (!mesh.group(MeshAxis::tensor)) return std::make_unique<NothingPartial>();
  return std::make_unique<SummedParts>(mesh, parameters, context, timeout);
}

}  // namespace esp::parallel
