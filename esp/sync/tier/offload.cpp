#include "esp/sync/tier/offload.h"

namespace esp::sync {

std::unique_ptr<OffloadedOptimizer> Offload::make_optimizer(const optim::OptimizerOptions& options,
                                                            const nn::ParameterList& parameters,
                                                            const device::Stream& stream,
                                                            std::vector<optim::OptimizerShard> owned,
                                                            const TierOptions& tier) {
  TierOptions tier_options = tier;
  tier_options.values = values_;
  auto made = make_offloaded_optimizer(options, parameters, stream, host_, link_, std::move(owned), tier_options);
  optimizer_ = made.get();
  return made;
}

void Offload::take_gradient(size_t owned, int64_t first, const tensor::Tensor& piece, bool add) {
  optimizer_->take_gradient(owned, first, piece, add);
}

FileTraffic Offload::file_traffic() const {
  FileTraffic sum = optimizer_ ? optimizer_->file_traffic() : FileTraffic();
  if (values_) {
    const FileTraffic values = values_->traffic();
    sum.read += values.read;
    sum.written += values.written;
    sum.padding_read += values.padding_read;
    sum.padding_written += values.padding_written;
  }
  return sum;
}

std::vector<std::string> Offload::notes() const {
  return optimizer_ ? optimizer_->notes() : std::vector<std::string>();
}

tensor::Tensor Offload::gradient(size_t owned) {
  return optimizer_->gradient(owned);
}

}  // namespace esp::sync
