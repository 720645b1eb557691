#include "esp/sync/on_host.h"

#include <utility>

#include "esp/device/gpu.h"

namespace esp::sync {
namespace {

class OnHost final : public Strategy {
 public:
  OnHost(std::unique_ptr<Strategy> inner, nn::ParameterList& host, nn::ParameterList& device,
         const tensor::Context& context, DType storage)
      : inner_(std::move(inner)), host_(host), device_(device), stream_(context.stream) {
    ESP_CHECK(host.all().size() == device.all().size() && host.count() == device.count(),
              "{} parameters on the host, {} on the device", host.all().size(), device.all().size());
    device.materialize(context, storage, true);
  }

  void fill(const std::function<void(nn::ParameterList::Unit&)>& f) override { inner_->fill(f); }
  std::vector<optim::Owned> owned() override { return inner_->owned(); }
  std::vector<optim::Held> held() override { return inner_->held(); }
  void set_sink(GradientSink* sink) override { inner_->set_sink(sink); }

  void begin_step() override {
    inner_->begin_step();
    device_.forget_gradients(stream_);
  }
  void begin_pass(const Pass& pass) override {
    if (!pass.training) {
      inner_->begin_pass(pass);
      lift();
      inner_->end_pass();
    } else if (!std::exchange(open_, true)) {
      inner_->begin_pass({true, true});
      lift();
    }
  }
  void end_pass() override {}
  void finish() override {
    if (std::exchange(open_, false)) hand_over();
    inner_->finish();
  }
  const std::vector<double>& sums_of_squares() override { return inner_->sums_of_squares(); }
  void after_step() override { inner_->after_step(); }

  std::unique_ptr<optim::Optimizer> make_optimizer(const optim::OptimizerOptions& options) override {
    return inner_->make_optimizer(options);
  }
  Clocks* clocks() override { return inner_->clocks(); }
  Apart* apart() override { return inner_->apart(); }
  std::vector<Remembered> remembered() override { return inner_->remembered(); }
  StepTimes times() const override { return inner_->times(); }
  std::vector<std::string> take_notes() override { return inner_->take_notes(); }
  std::vector<Group> groups() const override { return inner_->groups(); }
  std::vector<comm::CallStats> messages() const override { return inner_->messages(); }

 private:
  // Memory that holds a value may be another's as soon as the next is asked for: one at a time.
  void lift() {
    each([this](autograd::Weight& host, autograd::Weight& device) {
      const tensor::Tensor& value = host.used_value();
      device::copy(device.value.data(), value.data(), value.bytes(), stream_);
      device::finish(stream_);
    });
  }

  void hand_over() {
    device_.settle_gradients(stream_);
    inner_->begin_backward();
    each_backwards([this](autograd::Weight& host, autograd::Weight& device) {
      host.used_value();  // as backward does
      const tensor::Tensor& gradient = host.gradient();
      device::copy(gradient.data(), device.grad.data(), gradient.bytes(), stream_);
      device::finish(stream_);
      host.stale = false;
      if (host.on_ready) host.on_ready();
    });
    inner_->end_pass();
  }

  template <typename F>  // f(weight on the host, weight on the device), in the order of the list
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
  bool open_ = false;  // a step's pass has begun and its gradients have not come down
};

}  // namespace

std::unique_ptr<Strategy> make_on_host(std::unique_ptr<Strategy> inner, nn::ParameterList& host,
                                       nn::ParameterList& device, const tensor::Context& context, DType storage) {
  return std::make_unique<OnHost>(std::move(inner), host, device, context, storage);
}

}  // namespace esp::sync
