#include "esp/train/micro_batches.h"

#include <algorithm>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/device/on_cuda.h"
#include "esp/kernel/elementwise.h"
#include "esp/train/pipelined.h"
#include "esp/train/recorded.h"

namespace esp::train {

using tensor::Tensor;

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
  one.pass.ops = setup.regions;
  one.pass.router_scale = rows.router_scale;
  one.pass.recompute = training ? parse_recompute(setup.config->train.recompute) : nn::RecomputeMode::none;
  // A stage's number, spread over its pieces.
  const auto num_pieces = static_cast<int64_t>(std::max<size_t>(1, setup.pieces.size()));
  if (const int64_t layers = setup.config->train.recompute_layers; layers >= 0)
    one.pass.recompute_layers = (layers + num_pieces - 1) / num_pieces;
  return one;
}

MicroBatch searched_micro_batch(const MicroBatchSetup& setup, const Placed& batch, const Rows& rows, int64_t index) {
  return micro_batch(setup, batch, rows, index, setup.config->model.dropout > 0);
}

void begin_pass(const MicroBatchSetup& setup, const sync::PassOptions& pass) {
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
      : setup_(setup), batch_(setup.context, setup.model->config()), tape_(setup.context), recorded_(setup) {}

  double run(const data::Batch& batch, const Rows& rows, bool training, double scale) override {
    double sum = 0;
    batch_.put(batch);
    if (device::on_cuda(setup_.context.stream)) return run_queued(rows, training, scale);
    run_passes(rows, training, scale, [&](int64_t, const Tensor& loss) { sum += tensor::item(loss); });
    return sum;
  }

  FoundNotFinite first_not_finite(const data::Batch& batch, const Rows& rows) override {
    NotFiniteSearch search(*setup_.model, setup_.context);
    batch_.put(batch);
    for (int64_t index = 0; index < rows.num_passes; ++index) {
      MicroBatch one = searched_micro_batch(setup_, batch_, rows, index);
      one.pass.tape = &tape_;
      begin_pass(setup_, {.training = false, .last = true});
      model::HiddenStates state;
      for (const Piece& piece : setup_.pieces) state = search.through(piece, one.pass, one.rows, state);
      state = {};
      tape_.clear();
      end_pass(setup_);
    }
    return search.found();
  }

 private:
  // On a GPU the losses come to the host once, when everything is queued.
  double run_queued(const Rows& rows, bool training, double scale) {
    const device::Stream& stream = setup_.context.stream;
    losses_.assign(static_cast<size_t>(rows.num_passes), 0);
    if (!queued_.defined() || queued_.count() < rows.num_passes) {
      queued_ = tensor::empty(setup_.context, {rows.num_passes}, DType::f64, device::MemoryCategory::buffer);
      recorded_.forget();
    }
    kernel::fill(queued_.data(), 0, rows.num_passes, DType::f64, stream);
    const auto queue = [&] {
      run_passes(rows, training, scale, [&](int64_t index, const Tensor& loss) {
        device::copy(queued_.as<double>() + index, loss.data(), sizeof(double), stream);
      });
    };
    if (training)
      recorded_.run(rows, batch_.inputs(), scale, queue);
    else
      queue();
    device::copy(losses_.data(), queued_.data(), losses_.size() * sizeof(double), stream);
    device::finish(stream);
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum;
  }

  template <typename F>
  void run_passes(const Rows& rows, bool training, double scale, F&& note_loss) {
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
      if (!one.extra) note_loss(index, loss.total.value());
      if (training) {
        obs::Span span(setup_.trace, "backward", "compute");
        for (sync::Strategy* strategy : setup_.strategies) strategy->begin_backward();
        autograd::backward(tape_, loss);
      }
      loss = {};
      tape_.clear();
      end_pass(setup_);
    }
  }

  const MicroBatchSetup setup_;
  Placed batch_;
  autograd::Tape tape_;
  RecordedPasses recorded_;
  Tensor queued_;  // losses of the passes, on a GPU
  std::vector<double> losses_;
};

}  // namespace

std::unique_ptr<MicroBatches> make_micro_batches(const MicroBatchSetup& setup) {
  if (setup.mesh->shape().pp > 1) return make_pipelined(setup);
  return std::make_unique<OneAfterAnother>(setup);
}

}  // namespace esp::train
