#include "esp/sync/host_strategy.h"

#include <utility>

#include "esp/device/gpu.h"

namespace esp::sync {
namespace {

class HostStrategy final : public Strategy {
 public:
  HostStrategy(std::unique_ptr<Strategy> inner, nn::ParameterList& host, nn::ParameterList& device,
               const tensor::Context& context, DType storage)
      : inner_(std::move(inner)), host_(host), device_(device), stream_(context.stream) {
    ESP_CHECK(host.all().size() == device.all().size() && host.count() == device.count(),
              "host strategy: got {} parameters ({} elements) on the host; expected {} parameters ({} elements), as on "
              "the device",
              host.all().size(), host.count(), device.all().size(), device.count());
    device.materialize(context, storage, true);
  }

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override { inner_->fill(f); }
  std::vector<optim::OptimizerShard> optimizer_shards() override { return inner_->optimizer_shards(); }
  std::vector<optim::ValueShard> checkpoint_shards() override { return inner_->checkpoint_shards(); }
  void set_sink(GradientSink* sink) override { inner_->set_sink(sink); }

  void begin_step() override {
    inner_->begin_step();
    device_.mark_gradients_stale(stream_);
  }
  void begin_pass(const PassOptions& pass) override {
    if (!pass.training) {
      inner_->begin_pass(pass);
      upload();
      inner_->end_pass();
    } else if (!std::exchange(open_, true)) {
      inner_->begin_pass({true, true});
      upload();
    }
  }
  void end_pass() override {}
  void finish() override {
    if (std::exchange(open_, false)) download_gradients();
    inner_->finish();
  }
  const std::vector<double>& sums_of_squares() override { return inner_->sums_of_squares(); }
  void after_step() override { inner_->after_step(); }

  std::unique_ptr<optim::Optimizer> make_optimizer(const optim::OptimizerOptions& options) override {
    return inner_->make_optimizer(options);
  }
  AsyncWorkers* async_workers() override { return inner_->async_workers(); }
  DivergentReplicas* divergent_replicas() override { return inner_->divergent_replicas(); }
  std::vector<ExtraState> extra_state() override { return inner_->extra_state(); }
  StepTimes times() const override { return inner_->times(); }
  std::vector<std::string> take_notes() override { return inner_->take_notes(); }
  std::vector<NamedGroup> groups() const override { return inner_->groups(); }
  std::vector<comm::CallStats> messages() const override { return inner_->messages(); }

 private:
  // Uploads the values one at a time, because requesting the next value may reuse the memory of the previous one.
  void upload() {
    each([this](autograd::Weight& host, autograd::Weight& device) {
      const tensor::Tensor& value = host.fetch_value();
      device::copy(device.value.data(), value.data(), value.bytes(), stream_);
      device::finish(stream_);
    });
  }

  void download_gradients() {
    device_.clear_stale_gradients(stream_);
    inner_->begin_backward();
    each_backwards([this](autograd::Weight& host, autograd::Weight& device) {
      host.fetch_value();  // calls the weight's on_use hook, as backward does
      const tensor::Tensor& gradient = host.gradient();
      device::copy(gradient.data(), device.grad.data(), gradient.bytes(), stream_);
      device::finish(stream_);
      host.stale = false;
      if (host.on_ready) host.on_ready();
    });
    inner_->end_pass();
  }

  // Calls f(weight on the host, weight on the device) in list order.
  template <typename F>
  void each(F f) {
    for (size_t i = 0; i < host_.all().size(); ++i) f(host_.all()[i].weight, device_.all()[i].weight);
  }
  template <typename F>
  void each_backwards(F f) {
    for (size_t i = host_.all().size(); i-- > 0;) f(host_.all()[i].weight, device_.all()[i].weight);
  }

  const std::unique_ptr<Strategy> inner_;
  nn::ParameterList &host_, &device_;
  const device::Stream stream_;
  bool open_ = false;  // true from the first pass of a step until its gradients are on the host
};

}  // namespace

std::unique_ptr<Strategy> make_host_strategy(std::unique_ptr<Strategy> inner, nn::ParameterList& host,
                                             nn::ParameterList& device, const tensor::Context& context, DType storage) {
  return std::make_unique<HostStrategy>(std::move(inner), host, device, context, storage);
}

}  // namespace esp::sync
