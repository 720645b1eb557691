#include "esp/train/device_batch.h"

#include <algorithm>

#include "esp/device/gpu.h"
#include "esp/device/is_cuda.h"

namespace esp::train {
namespace {

using tensor::Tensor;

Tensor flat_view(const std::vector<int32_t>& values) {
  if (values.empty()) return {};
  return Tensor::borrow(const_cast<int32_t*>(values.data()), {static_cast<int64_t>(values.size())}, DType::i32);
}

}  // namespace

void DeviceBatch::load(const data::Batch& batch) {
  batch_ = &batch;
  const auto place = [&](Tensor& to, const std::vector<int32_t>& from) {
    const Tensor host = flat_view(from);
    if (!device::is_cuda(context_.stream) || !host.defined()) {
      to = host;
      return;
    }
    if (!to.defined() || to.count() < host.count())
      to = tensor::empty(context_, host.shape(), DType::i32, device::MemoryCategory::buffer);
    device::copy(to.data(), host.data(), host.bytes(), context_.stream);
  };
  if (device::is_cuda(context_.stream)) {  // on the CPU the model checks the ids itself
    model::ModelBatch all;
    all.inputs = flat_view(batch.inputs);
    all.targets = flat_view(batch.targets);
    all.decoder_inputs = flat_view(batch.decoder_inputs);
    model::check_inputs(config_, all);
    model::check_targets(config_, all);
  }
  place(inputs_, batch.inputs);
  place(targets_, batch.targets);
  place(decoder_inputs_, batch.decoder_inputs);
  place(lengths_, batch.lengths);
}

model::ModelBatch DeviceBatch::rows(int64_t first, int64_t count, int64_t seq_len) const {
  const auto view = [&](const Tensor& values, int64_t width, bool flat) {
    if (!values.defined() || width == 0) return Tensor();
    const Tensor mine = values.slice(first * width, (first + count) * width);
    return flat ? mine : mine.reshape({count, width});
  };
  const data::BatchShape& shape = batch_->shape;
  model::ModelBatch rows;
  rows.inputs = view(inputs_, shape.T, false);
  rows.targets = view(targets_, shape.num_targets, shape.num_targets == 1);
  rows.decoder_inputs = view(decoder_inputs_, shape.T_decoder, false);
  // If none of these rows has padding, `lengths` stays empty and the kernels skip the mask.
  const auto begin = batch_->lengths.begin() + first;
  if (!batch_->lengths.empty() && !std::all_of(begin, begin + count, [&](int32_t length) { return length == seq_len; }))
    rows.lengths = view(lengths_, 1, true);
  return rows;
}

}  // namespace esp::train
