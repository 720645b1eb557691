#include "esp/train/micro_batch_runner.h"

#include <algorithm>

#include "esp/autograd/functions/cross_entropy.h"
#include "esp/device/is_cuda.h"
#include "esp/kernel/elementwise.h"
#include "esp/train/cuda_graph_runner.h"
#include "esp/train/pipeline_micro_batch_runner.h"

namespace esp::train {

using tensor::Tensor;

MicroBatch micro_batch(const MicroBatchSetup& setup, const DeviceBatch& batch, const BatchRows& rows, int64_t index,
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
  // train.recompute_layers is a number of layers per stage; it is divided over the chunks of the stage.
  const auto num_chunks = static_cast<int64_t>(std::max<size_t>(1, setup.chunks.size()));
  if (const int64_t layers = setup.config->train.recompute_layers; layers >= 0)
    one.pass.recompute_layers = (layers + num_chunks - 1) / num_chunks;
  return one;
}

MicroBatch replayed_micro_batch(const MicroBatchSetup& setup, const DeviceBatch& batch, const BatchRows& rows,
                                int64_t index) {
  return micro_batch(setup, batch, rows, index, setup.config->model.dropout > 0);
}

void begin_pass(const MicroBatchSetup& setup, const sync::PassOptions& pass) {
  for (sync::Strategy* strategy : setup.strategies) strategy->begin_pass(pass);
  for (parallel::PartialGradients* partial : setup.partial)
    partial->begin_pass(pass.training && (pass.last || setup.reduce_every_micro_batch));
}

void end_pass(const MicroBatchSetup& setup) {
  for (parallel::PartialGradients* partial : setup.partial) partial->end_pass();
  for (sync::Strategy* strategy : setup.strategies) strategy->end_pass();
}

namespace {

class SequentialMicroBatchRunner final : public MicroBatchRunner {
 public:
  explicit SequentialMicroBatchRunner(const MicroBatchSetup& setup)
      : setup_(setup), batch_(setup.context, setup.model->config()), tape_(setup.context), graph_runner_(setup) {}

  double run(const data::Batch& batch, const BatchRows& rows, bool training, double scale) override {
    double sum = 0;
    batch_.load(batch);
    if (device::is_cuda(setup_.context.stream)) return run_queued(rows, training, scale);
    run_passes(rows, training, scale, [&](int64_t, const Tensor& loss) { sum += tensor::item(loss); });
    return sum;
  }

  NonFinitePart find_non_finite(const data::Batch& batch, const BatchRows& rows) override {
    NonFiniteSearch search(*setup_.model, setup_.context);
    batch_.load(batch);
    for (int64_t index = 0; index < rows.num_micro_batches; ++index) {
      MicroBatch one = replayed_micro_batch(setup_, batch_, rows, index);
      one.pass.tape = &tape_;
      begin_pass(setup_, {.training = false, .last = true});
      model::HiddenStates state;
      for (const ModelChunk& piece : setup_.chunks) state = search.run_chunk(piece, one.pass, one.rows, state);
      state = {};
      tape_.clear();
      end_pass(setup_);
    }
    return search.found();
  }

 private:
  // On a GPU all losses are copied to the host in one transfer, after all kernels have been queued.
  double run_queued(const BatchRows& rows, bool training, double scale) {
    const device::Stream& stream = setup_.context.stream;
    losses_.assign(static_cast<size_t>(rows.num_micro_batches), 0);
    if (!queued_.defined() || queued_.count() < rows.num_micro_batches) {
      queued_ = tensor::empty(setup_.context, {rows.num_micro_batches}, DType::f64, device::MemoryCategory::buffer);
      graph_runner_.reset();
    }
    kernel::fill(queued_.data(), 0, rows.num_micro_batches, DType::f64, stream);
    const auto queue = [&] {
      run_passes(rows, training, scale, [&](int64_t index, const Tensor& loss) {
        device::copy(queued_.as<double>() + index, loss.data(), sizeof(double), stream);
      });
    };
    if (training)
      graph_runner_.run(rows, batch_.inputs(), scale, queue);
    else
      queue();
    device::copy(losses_.data(), queued_.data(), losses_.size() * sizeof(double), stream);
    device::finish(stream);
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum;
  }

  template <typename F>
  void run_passes(const BatchRows& rows, bool training, double scale, F&& note_loss) {
    for (int64_t index = 0; index < rows.num_micro_batches; ++index) {
      MicroBatch one = micro_batch(setup_, batch_, rows, index, training);
      one.pass.tape = &tape_;
      const bool last = index + 1 == rows.num_micro_batches;
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
  DeviceBatch batch_;
  autograd::Tape tape_;
  CudaGraphRunner graph_runner_;
  Tensor queued_;  // losses of the micro-batches, in device memory
  std::vector<double> losses_;
};

}  // namespace

std::unique_ptr<MicroBatchRunner> make_micro_batch_runner(const MicroBatchSetup& setup) {
  if (setup.mesh->shape().pp > 1) return make_pipeline_micro_batch_runner(setup);
  return std::make_unique<SequentialMicroBatchRunner>(setup);
}

}  // namespace esp::train
