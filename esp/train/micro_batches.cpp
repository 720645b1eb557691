#include "esp/train/micro_batches.h"

#include <algorithm>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/train/pipelined.h"

namespace esp::train {

MicroBatch micro_batch(const MicroBatchSetup& setup, const Placed& batch, const Rows& rows, int64_t index,
                       bool training) {
  const int64_t size = setup.config->train.micro_batch;
  MicroBatch one;
  one.extra = index * size >= batch.num_rows();
  const int64_t first = one.extra ? 0 : index * size;
  const int64_t count = one.extra ? 1 : std::min(size, batch.num_rows() - first);
  one.rows = batch.rows(first, count, rows.seq_len);
  one.pass.training = training;
  one.pass.seed = static_cast<uint64_t>(setup.config->run.seed);
  one.pass.step = rows.step;
  one.pass.first_sequence = rows.first + first;
  one.pass.num_sequences = count;
  one.pass.tokens = setup.tokens;
  one.pass.regions = setup.regions;
  one.pass.router_scale = rows.router_scale;
  one.pass.recompute = training ? parse_recompute(setup.config->train.recompute) : nn::Recompute::none;
  return one;
}

void begin_pass(const MicroBatchSetup& setup, const sync::Pass& pass) {
  for (sync::Strategy* strategy : setup.strategies) strategy->begin_pass(pass);
  for (parallel::PartialGradients* partial : setup.partial)
    partial->begin_pass(pass.training && (pass.last || setup.every_pass_leaves));
}

void end_pass(const MicroBatchSetup& setup) {
  for (parallel::PartialGradients* partial : setup.partial) partial->end_pass();
  for (sync::Strategy* strategy : setup.strategies) strategy->end_pass();
}

namespace {

class OneAfterAnother final : public MicroBatches {
 public:
  explicit OneAfterAnother(const MicroBatchSetup& setup)
      : setup_(setup), batch_(setup.context, setup.model->config()), tape_(setup.context) {}

  double run(const data::Batch& batch, const Rows& rows, bool training, double scale) override {
    double sum = 0;
    batch_.put(batch);
    for (int64_t index = 0; index < rows.num_passes; ++index) {
      MicroBatch one = micro_batch(setup_, batch_, rows, index, training);
      one.pass.tape = &tape_;
      const bool last = index + 1 == rows.num_passes;
      begin_pass(setup_, {training, last});
      tape_.set_recording(training);
      autograd::Loss loss;
      {
        obs::Span span(setup_.trace, "forward", "compute");
        loss = setup_.model->forward(one.pass, one.rows, scale);
      }
      if (!one.extra) sum += tensor::item(loss.total.value());
      if (training) {
        obs::Span span(setup_.trace, "backward", "compute");
        for (sync::Strategy* strategy : setup_.strategies) strategy->begin_backward();
        autograd::backward(tape_, loss);
      }
      loss = {};
      tape_.clear();
      end_pass(setup_);
    }
    return sum;
  }

 private:
  const MicroBatchSetup setup_;
  Placed batch_;
  autograd::Tape tape_;
};

}  // namespace

std::unique_ptr<MicroBatches> make_micro_batches(const MicroBatchSetup& setup) {
  if (setup.mesh->shape().pp > 1) return make_pipelined(setup);
  return std::make_unique<OneAfterAnother>(setup);
}

}  // namespace esp::train
