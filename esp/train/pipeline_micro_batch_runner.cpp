#include "esp/train/pipeline_micro_batch_runner.h"

#include <array>
#include <optional>

#include <fmt/format.h>

#include "esp/autograd/functions/weights.h"
#include "esp/base/clock.h"
#include "esp/obs/file.h"
#include "esp/parallel/pp/defer_ready.h"
#include "esp/parallel/pp/edges.h"
#include "esp/parallel/pp/runner.h"
#include "esp/parallel/pp/schedule.h"
#include "esp/parallel/pp/schedule_text.h"

namespace esp::train {
namespace {

using parallel::MeshAxis;
using parallel::StagePlan;

class PipelineMicroBatchRunner final : public MicroBatchRunner, private parallel::PipelineStage {
 public:
  explicit PipelineMicroBatchRunner(const MicroBatchSetup& setup)
      : setup_(setup),
        batch_(setup.context, setup.model->config()),
        edges_(setup.mesh->group(MeshAxis::pipe), setup.chunks.size() > 1),
        tied_group_(make_tied_table_group()),
        tied_(tied_group_ ? setup.model->parameters().find_or_null("embedding.weight") : nullptr),
        runner_(*this, setup.context, edges_.stage_edges(), {region_options(*setup.config).timeout, setup.trace}) {
    for (const ModelChunk& chunk : setup.chunks) weights_.push_back(weights_of(chunk));
  }

  double run(const data::Batch& batch, const BatchRows& rows, bool training, double scale) override {
    scale_ = scale;
    micro_batches_.clear();
    batch_.load(batch);
    for (int64_t index = 0; index < rows.num_micro_batches; ++index)
      micro_batches_.push_back(micro_batch(setup_, batch_, rows, index, training));
    losses_.assign(micro_batches_.size(), 0);
    begin_pass(setup_, {training, true});
    if (tied_ && training) parallel::defer_ready(tied_->weight);
    runner_.run(plan_for(static_cast<int>(rows.num_micro_batches), training));
    if (tied_ && training) reduce_tied_gradient();
    end_pass(setup_);
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum;
  }
  NonFinitePart find_non_finite(const data::Batch& batch, const BatchRows& rows) override {
    search_.emplace(*setup_.model, setup_.context);
    micro_batches_.clear();
    batch_.load(batch);
    for (int64_t index = 0; index < rows.num_micro_batches; ++index)
      micro_batches_.push_back(replayed_micro_batch(setup_, batch_, rows, index));
    begin_pass(setup_, {.training = false, .last = true});
    runner_.run(plan_for(static_cast<int>(rows.num_micro_batches), false));
    end_pass(setup_);
    const NonFinitePart found = search_->found();
    search_.reset();
    return found;
  }
  double exposed_ms() const override { return runner_.exposed_ms() + tied_ms_; }
  void reset_times() override {
    runner_.reset_times();
    tied_ms_ = 0;
  }
  std::vector<std::pair<std::string_view, const comm::Communicator*>> communicators() const override {
    const parallel::StageEdges edges = edges_.stage_edges();
    std::vector<std::pair<std::string_view, const comm::Communicator*>> all = {
        {"pipe_activations_in", edges.activations_in},
        {"pipe_activations_out", edges.activations_out},
        {"pipe_gradients_in", edges.gradients_in},
        {"pipe_gradients_out", edges.gradients_out},
        {"tied_table", tied_group_.get()}};
    std::erase_if(all, [](const auto& line) { return !line.second; });
    return all;
  }

 private:
  // The group of the first and the last stage, which both have the tied embedding and need not be neighbours.
  std::unique_ptr<comm::Communicator> make_tied_table_group() const {
    if (!setup_.model->config().tie_embeddings || setup_.model->config().num_classes > 0) return nullptr;
    const int here = setup_.mesh->index(MeshAxis::pipe), last = setup_.mesh->size(MeshAxis::pipe) - 1;
    return setup_.mesh->group(MeshAxis::pipe)->split(here == 0 || here == last ? 0 : -1, here);
  }

  std::vector<autograd::Weight*> weights_of(const ModelChunk& chunk) const {
    std::vector<autograd::Weight*> weights;
    for (nn::ParameterList* list : {&setup_.model->parameters(), setup_.model->experts()}) {
      if (!list) continue;
      for (auto& unit : list->units()) {
        bool mine = (chunk.stem && unit.name == "stem") || (chunk.head && unit.name == "head");
        for (int64_t i = chunk.blocks.begin; i < chunk.blocks.end; ++i)
          mine = mine || unit.name == fmt::format("blocks.{}", i);
        if (mine)
          for (nn::Parameter* p : unit.parameters) weights.push_back(&p->weight);
      }
    }
    return weights;
  }

  // All-reduces the gradient of the tied embedding. The first stage has the gradient of the embedding, the last stage
  // that of the head. Both stages get a bit-identical sum.
  void reduce_tied_gradient() {
    autograd::Weight& weight = tied_->weight;
    autograd::gradient_to_add_to(&weight, setup_.context.stream);
    obs::Span span(setup_.trace, "tied table", "communication");
    const int64_t begun = now_ns();
    tied_group_->all_reduce(weight.grad.data(), weight.grad.data(), static_cast<size_t>(weight.grad.count()),
                            weight.grad.dtype(), comm::ReduceOp::sum);
    tied_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
    parallel::resume_ready(weight, setup_.context.stream);
  }

  // Returns the plan of this stage. The last plan for training and the last one for evaluation are cached.
  const StagePlan& plan_for(int num_micro_batches, bool training) {
    StagePlan& plan = plans_[training ? 1 : 0];
    if (plan.shape.micro_batches == num_micro_batches && !plan.steps.empty()) return plan;
    const parallel::ScheduleShape shape{setup_.mesh->size(MeshAxis::pipe), static_cast<int>(setup_.chunks.size()),
                                        num_micro_batches};
    plan = parallel::plan_of(training ? chosen_schedule(shape) : parallel::forward_schedule(shape),
                             setup_.mesh->index(MeshAxis::pipe));
    return plan;
  }

  parallel::PipelineSchedule chosen_schedule(const parallel::ScheduleShape& shape) const {
    const std::string& name = setup_.config->parallel.schedule;
    if (!parallel::is_schedule_file_name(name)) return parallel::make_schedule(name, shape);
    std::string text;
    try {
      text = obs::read_whole_file(name, parallel::kMaxScheduleTextBytes);
    } catch (const IoError& error) {
      throw IoError(fmt::format("parallel.schedule: {}", error.what()));
    }
    parallel::PipelineSchedule own = parallel::parse_schedule_text(text, name);
    parallel::check_fits(own, shape);
    return own;
  }

  parallel::StageTensorShapes stream(int index) const {
    const model::ModelBatch& rows = micro_batches_[static_cast<size_t>(index)].rows;
    const int64_t B = rows.inputs.dim(0), T = rows.inputs.dim(1), dim = setup_.model->config().dim;
    const auto* divided = dynamic_cast<const parallel::ModelParallelOps*>(setup_.regions);
    return {divided ? divided->stream_shape(B, T, dim) : tensor::Shape{B, T, dim},
            {},
            storage_type(setup_.config->train.precision)};
  }
  parallel::StageTensorShapes input_shape(int, int micro_batch) const override { return stream(micro_batch); }
  parallel::StageTensorShapes output_shape(int, int micro_batch) const override { return stream(micro_batch); }
  std::span<autograd::Weight* const> weights(int chunk) const override { return weights_[static_cast<size_t>(chunk)]; }

  ForwardResult forward(int chunk_index, int index, autograd::Tape& tape,
                        const parallel::StageTensors& input) override {
    const ModelChunk& chunk = setup_.chunks[static_cast<size_t>(chunk_index)];
    MicroBatch& one = micro_batches_[static_cast<size_t>(index)];
    one.pass.tape = &tape;
    model::Model& model = *setup_.model;
    model::HiddenStates state{input.x, input.memory};
    if (search_) {
      state = search_->run_chunk(chunk, one.pass, one.rows, state);
      return {{state.x, state.memory}, {}};
    }
    if (chunk.stem) {
      model::check_inputs(model.config(), one.rows);
      state = model.stem(one.pass, one.rows);
    }
    state = model.blocks(static_cast<int>(chunk.blocks.begin), static_cast<int>(chunk.blocks.end), one.pass, state,
                         one.rows);
    if (!chunk.head) return {{state.x, state.memory}, {}};
    model::check_targets(model.config(), one.rows);
    ForwardResult output{{}, model.loss(one.pass, state, one.rows, scale_)};
    if (!one.extra) losses_[static_cast<size_t>(index)] = tensor::item(output.loss.total.value());
    return output;
  }

  const MicroBatchSetup setup_;
  DeviceBatch batch_;
  const parallel::PipeEdges edges_;
  // Communicator of the first and the last stage. Null without a tied embedding, and on the stages in between.
  const std::unique_ptr<comm::Communicator> tied_group_;
  nn::Parameter* const tied_;
  std::vector<std::vector<autograd::Weight*>> weights_;  // weights of each model chunk, by chunk
  parallel::PipelineRunner runner_;
  std::array<StagePlan, 2> plans_;  // [0]: for evaluation, [1]: for training
  std::vector<MicroBatch> micro_batches_;
  std::vector<double> losses_;
  std::optional<NonFiniteSearch> search_;  // set while find_non_finite runs
  double scale_ = 1, tied_ms_ = 0;
};

}  // namespace

std::unique_ptr<MicroBatchRunner> make_pipeline_micro_batch_runner(const MicroBatchSetup& setup) {
  return std::make_unique<PipelineMicroBatchRunner>(setup);
}

}  // namespace esp::train
