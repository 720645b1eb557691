#include "esp/sync/compress/one_bit_momentum.h"

#include "esp/kernel/difference.h"
#include "esp/kernel/elementwise.h"

namespace esp::sync {

OneBitMomentum::OneBitMomentum(AggregationSetup setup) : setup_(setup), sign_(make_compressor("sign")) {
  setup.compressor = sign_.get();
  FeedbackSetup feedback{setup, {}, AggregationMethod::two_phase};
  ranks_ = make_feedback("doublesqueeze", feedback);
  own_ = tensor::zeros(setup.context, {setup.count}, setup.dtype, device::MemoryCategory::buffer);
  part_ = tensor::zeros(setup.context, {setup.count}, setup.dtype, device::MemoryCategory::buffer);
}

void OneBitMomentum::exchange(void* momentum, const void* gradient, double beta1, const void* mask) {
  const auto& stream = setup_.context.stream;
  const int64_t n = setup_.count;
  kernel::write_values(own_.data(), WriteMode::overwrite, momentum, n, setup_.dtype, stream);
  kernel::scale(own_.data(), beta1, n, setup_.dtype, stream);
  kernel::write_values(part_.data(), WriteMode::overwrite, gradient, n, setup_.dtype, stream);
  kernel::scale(part_.data(), 1 - beta1, n, setup_.dtype, stream);
  kernel::add_to(own_.data(), part_.data(), n, setup_.dtype, stream);
  ranks_->exchange(momentum, own_.data());
  if (!mask) return;
  kernel::multiply(momentum, mask, n, setup_.dtype, stream);
}

}  // namespace esp::sync
