#include "esp/kernel/optimizer_step.h"
#include "esp/kernel/floating.h"

namespace esp::kernel {
namespace {

StepBuffers piece_of(const StepBuffers& whole, int64_t begin, int64_t end) {
  const DType state = accumulator_of(whole.grad_type);
  return {at(whole.master, begin, state),
          at(whole.weights, begin, whole.grad_type),
          at(whole.grad, begin, whole.grad_type),
          at(whole.m, begin, state),
          at(whole.v, begin, state),
          end - begin,
          whole.grad_type};
}

}  // namespace

void adam_step(const StepBuffers& buffers, const AdamStep& step, const device::Stream& stream) {
  device::parallel_for(stream, buffers.count, 4096,
                       [&](int64_t begin, int64_t end) { ref::adam_step(piece_of(buffers, begin, end), step); });
}

void sgd_step(const StepBuffers& buffers, const SgdStep& step, const device::Stream& stream) {
  device::parallel_for(stream, buffers.count, 4096,
                       [&](int64_t begin, int64_t end) { ref::sgd_step(piece_of(buffers, begin, end), step); });
}

}  // namespace esp::kernel
