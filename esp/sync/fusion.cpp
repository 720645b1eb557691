#include "esp/sync/fusion.h"

#include <pthread.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "esp/autograd/functions/weights.h"
#include "esp/base/error.h"
#include "esp/sync/replicated_strategy.h"
#include "esp/sync/wire.h"

namespace esp::sync {
namespace {

using tensor::Tensor;

class Fusion final : public ReplicatedStrategy {
 public:
  explicit Fusion(const Setup& setup)
      : ReplicatedStrategy(setup),
        limit_(std::max<int64_t>(
            1, static_cast<int64_t>(setup.options.fusion_mb * (1 << 20)) / static_cast<int64_t>(size_of(wire_)))),
        cycle_(std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(setup.options.cycle_ms))),
        flags_comm_(setup.ranks ? setup.ranks->split(0, setup.ranks->rank()) : nullptr),
        ready_(parameters_.all().size()) {
    size_t index = 0;
    int64_t largest = 0;
    for (nn::Parameter& p : parameters_.all()) {
      p.weight.on_ready = [this, index] { ready(index); };
      order_.push_back(&p);
      largest = std::max(largest, p.count());
      ++index;
    }
    buffer_ = tensor::empty(setup.context, {std::max(largest, std::min(limit_, parameters_.count()))}, wire_,
                            device::MemoryCategory::buffer);
    if (setup.ranks) thread_ = std::thread([this] { serve(); });
  }
  ~Fusion() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      // a step ended with an error: the thread waits for a collective that cannot complete
      if (working_ && setup_.ranks) {
        flags_comm_->abort("this rank stopped in the middle of a step");
        setup_.ranks->abort("this rank stopped in the middle of a step");
      }
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void begin_pass(const PassOptions& pass) override {
    if (!pass.training || !pass.last || !setup_.ranks) return;
    std::lock_guard lock(mutex_);
    ready_.assign(ready_.size(), 0);
    armed_ = working_ = true;
    changed_.notify_all();
  }
  void end_pass() override {
    if (!armed_) return;
    for (size_t i = 0; i < order_.size(); ++i) {
      if (ready_[i]) continue;  // only this thread writes the flag, so it needs no lock to read it
      autograd::clear_if_stale(order_[i]->weight, setup_.context.stream);
      ready(i);
    }
    armed_ = false;
  }
  void finish() override {
    std::unique_lock lock(mutex_);
    const int64_t begun = now_ns();
    {
      obs::Span span(setup_.trace, "gradients", "communication");
      if (!changed_.wait_for(lock, setup_.timeout, [this] { return !working_; }))
        throw CommError(CommError::Kind::timeout, -1,
                        "tensor fusion: timeout while waiting for the gradients of this step to be reduced");
    }
    waited_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
    if (error_) std::rethrow_exception(error_);
  }
  void begin_step() override {
    ReplicatedStrategy::begin_step();
    waited_ms_ = 0;
  }
  StepTimes times() const override { return {ReplicatedStrategy::times().exposed_ms + waited_ms_}; }
  std::vector<NamedGroup> groups() const override {
    return flags_comm_ ? std::vector<NamedGroup>{{"fusion_flags", flags_comm_.get()}} : std::vector<NamedGroup>();
  }

 private:
  void ready(size_t index) {
    if (!armed_) return;
    std::lock_guard lock(mutex_);
    ready_[index] = 1;
  }

  void serve() {
    pthread_setname_np(pthread_self(), "esp-fusion");
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return working_ || stopping_; });
      if (stopping_) return;
      lock.unlock();
      std::exception_ptr error;
      try {
        reduce_step();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      working_ = false;
      changed_.notify_all();
      if (error) return;
    }
  }

  // Runs rounds until every gradient of the step is reduced. Every rank runs the same number of rounds.
  void reduce_step() {
    std::vector<int8_t> flags(order_.size()), done(order_.size());
    for (size_t left = order_.size(); left > 0;) {
      const auto next = Clock::now() + cycle_;
      {
        std::lock_guard lock(mutex_);
        flags.assign(ready_.begin(), ready_.end());
      }
      flags_comm_->all_reduce(flags.data(), flags.data(), flags.size(), DType::i8, comm::ReduceOp::min);
      std::vector<nn::Parameter*> fused;
      int64_t count = 0;
      bool any = false;
      for (size_t i = order_.size(); i-- > 0;) {  // gradients of the last parameters complete first
        if (!flags[i] || done[i]) continue;
        if (!fused.empty() && count + order_[i]->count() > limit_) {
          reduce_fused(fused, count);
          fused.clear();
          count = 0;
        }
        fused.push_back(order_[i]);
        count += order_[i]->count();
        done[i] = 1;
        --left;
        any = true;
      }
      if (!fused.empty()) reduce_fused(fused, count);
      if (!any && left > 0) std::this_thread::sleep_until(next);
    }
  }

  void reduce_fused(const std::vector<nn::Parameter*>& fused, int64_t count) {
    const device::Stream alone;
    const auto each = [&](auto&& f) {
      int64_t at = 0;
      for (nn::Parameter* p : fused) {
        f(p->weight.grad, buffer_.slice(at, at + p->count()));
        at += p->count();
      }
    };
    each([&](const Tensor& grad, const Tensor& place) {
      kernel::cast(place.data(), place.dtype(), grad.data(), grad.dtype(), place.count(), alone);
    });
    comm::Call call;
    call.op = comm::Op::all_reduce;
    call.in = call.out = buffer_.data();
    call.count = static_cast<size_t>(count);
    call.dtype = wire_;
    if (setup_.options.deterministic) call.algorithm = "direct";
    setup_.ranks->run(call);
    each([&](const Tensor& grad, const Tensor& place) {
      kernel::cast(grad.data(), grad.dtype(), place.data(), place.dtype(), place.count(), alone);
    });
  }

  const int64_t limit_;  // maximum number of elements of a fused buffer
  const Duration cycle_;
  const std::unique_ptr<comm::Communicator> flags_comm_;
  std::vector<nn::Parameter*> order_;
  Tensor buffer_;
  bool armed_ = false;    // used by the computing thread only
  double waited_ms_ = 0;  // used by the computing thread only

  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  std::vector<int8_t> ready_;
  bool working_ = false, stopping_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last member: ends before the objects it uses
};

}  // namespace

std::unique_ptr<Strategy> make_fusion(const Setup& setup) {
  return std::make_unique<Fusion>(setup);
}

}  // namespace esp::sync
