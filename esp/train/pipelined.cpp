#include "esp/train/pipelined.h"

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

class Pipelined final : public MicroBatches, private parallel::Stage {
 public:
  explicit Pipelined(const MicroBatchSetup& setup)
      : setup_(setup),
        batch_(setup.context, setup.model->config()),
        edges_(setup.mesh->group(MeshAxis::pipe), setup.pieces.size() > 1),
        ends_(line_between_ends()),
        tied_(ends_ ? setup.model->parameters().find_or_null("embedding.weight") : nullptr),
        runner_(*this, setup.context, edges_.of_this_stage(), {region_options(*setup.config).timeout, setup.trace}) {
    for (const Piece& piece : setup.pieces) weights_.push_back(weights_of(piece));
  }

  double run(const data::Batch& batch, const Rows& rows, bool training, double scale) override {
    scale_ = scale;
    micro_batches_.clear();
    batch_.put(batch);
    for (int64_t index = 0; index < rows.num_passes; ++index)
      micro_batches_.push_back(micro_batch(setup_, batch_, rows, index, training));
    losses_.assign(micro_batches_.size(), 0);
    begin_pass(setup_, {training, true});
    if (tied_ && training) parallel::defer_ready(tied_->weight);
    runner_.run(plan_for(static_cast<int>(rows.num_passes), training));
    if (tied_ && training) add_tied();
    end_pass(setup_);
    double sum = 0;
    for (const double loss : losses_) sum += loss;
    return sum;
  }
  FoundNotFinite first_not_finite(const data::Batch& batch, const Rows& rows) override {
    search_.emplace(*setup_.model, setup_.context);
    micro_batches_.clear();
    batch_.put(batch);
    for (int64_t index = 0; index < rows.num_passes; ++index)
      micro_batches_.push_back(searched_micro_batch(setup_, batch_, rows, index));
    begin_pass(setup_, {.training = false, .last = true});
    runner_.run(plan_for(static_cast<int>(rows.num_passes), false));
    end_pass(setup_);
    const FoundNotFinite found = search_->found();
    search_.reset();
    return found;
  }
  double exposed_ms() const override { return runner_.exposed_ms() + tied_ms_; }
  void reset_times() override {
    runner_.reset_times();
    tied_ms_ = 0;
  }
  std::vector<std::pair<std::string_view, const comm::Communicator*>> lines() const override {
    const parallel::StageEdges edges = edges_.of_this_stage();
    std::vector<std::pair<std::string_view, const comm::Communicator*>> all = {
        {"pipe_activations_in", edges.activations_in},
        {"pipe_activations_out", edges.activations_out},
        {"pipe_gradients_in", edges.gradients_in},
        {"pipe_gradients_out", edges.gradients_out},
        {"tied_table", ends_.get()}};
    std::erase_if(all, [](const auto& line) { return !line.second; });
    return all;
  }

 private:
  // A tied table stands on the first stage and on the last, which need not be neighbours.
  std::unique_ptr<comm::Communicator> line_between_ends() const {
    if (!setup_.model->config().tie_embeddings || setup_.model->config().num_classes > 0) return nullptr;
    const int here = setup_.mesh->index(MeshAxis::pipe), last = setup_.mesh->size(MeshAxis::pipe) - 1;
    return setup_.mesh->group(MeshAxis::pipe)->split(here == 0 || here == last ? 0 : -1, here);
  }

  std::vector<autograd::Weight*> weights_of(const Piece& piece) const {
    std::vector<autograd::Weight*> weights;
    for (nn::ParameterList* list : {&setup_.model->parameters(), setup_.model->experts()}) {
      if (!list) continue;
      for (auto& unit : list->units()) {
        bool mine = (piece.stem && unit.name == "stem") || (piece.head && unit.name == "head");
        for (int64_t i = piece.blocks.begin; i < piece.blocks.end; ++i)
          mine = mine || unit.name == fmt::format("blocks.{}", i);
        if (mine)
          for (nn::Parameter* p : unit.parameters) weights.push_back(&p->weight);
      }
    }
    return weights;
  }

  // Both ends have the gradient of their own use of the table; either gets the sum of the two, to the same bits.
  void add_tied() {
    autograd::Weight& weight = tied_->weight;
    autograd::gradient_to_add_to(&weight, setup_.context.stream);
    obs::Span span(setup_.trace, "tied table", "communication");
    const int64_t begun = now_ns();
    ends_->all_reduce(weight.grad.data(), weight.grad.data(), static_cast<size_t>(weight.grad.count()),
                      weight.grad.dtype(), comm::ReduceOp::sum);
    tied_ms_ += static_cast<double>(now_ns() - begun) * 1e-6;
    parallel::resume_ready(weight, setup_.context.stream);
  }

  // The last plan of either kind is kept: runs ask for the same again and again.
  const StagePlan& plan_for(int num_micro_batches, bool training) {
    StagePlan& plan = plans_[training ? 1 : 0];
    if (plan.shape.micro_batches == num_micro_batches && !plan.steps.empty()) return plan;
    const parallel::ScheduleShape shape{setup_.mesh->size(MeshAxis::pipe), static_cast<int>(setup_.pieces.size()),
                                        num_micro_batches};
    plan = parallel::plan_of(training ? chosen_schedule(shape) : parallel::forward_schedule(shape),
                             setup_.mesh->index(MeshAxis::pipe));
    return plan;
  }

  parallel::PipelineSchedule chosen_schedule(const parallel::ScheduleShape& shape) const {
    const std::string& name = setup_.config->parallel.schedule;
    if (!parallel::names_schedule_file(name)) return parallel::make_schedule(name, shape);
    parallel::PipelineSchedule own =
        parallel::parse_schedule_text(obs::read_whole_file(name, parallel::kMaxScheduleTextBytes), name);
    parallel::check_fits(own, shape);
    return own;
  }

  parallel::StageTensorShapes stream(int index) const {
    const model::ModelBatch& rows = micro_batches_[static_cast<size_t>(index)].rows;
    const int64_t B = rows.inputs.dim(0), T = rows.inputs.dim(1), dim = setup_.model->config().dim;
    const auto* divided = dynamic_cast<const parallel::ParallelRegions*>(setup_.regions);
    return {divided ? divided->stream_shape(B, T, dim) : tensor::Shape{B, T, dim},
            {},
            storage_type(setup_.config->train.precision)};
  }
  parallel::StageTensorShapes input_shape(int, int micro_batch) const override { return stream(micro_batch); }
  parallel::StageTensorShapes output_shape(int, int micro_batch) const override { return stream(micro_batch); }
  std::span<autograd::Weight* const> weights(int chunk) const override { return weights_[static_cast<size_t>(chunk)]; }

  ForwardResult forward(int chunk, int index, autograd::Tape& tape, const parallel::StageTensors& input) override {
    const Piece& piece = setup_.pieces[static_cast<size_t>(chunk)];
    MicroBatch& one = micro_batches_[static_cast<size_t>(index)];
    one.pass.tape = &tape;
    model::Model& model = *setup_.model;
    model::HiddenStates state{input.x, input.memory};
    if (search_) {
      state = search_->through(piece, one.pass, one.rows, state);
      return {{state.x, state.memory}, {}};
    }
    if (piece.stem) {
      model::check_inputs(model.config(), one.rows);
      state = model.stem(one.pass, one.rows);
    }
    state = model.blocks(static_cast<int>(piece.blocks.begin), static_cast<int>(piece.blocks.end), one.pass, state,
                         one.rows);
    if (!piece.head) return {{state.x, state.memory}, {}};
    model::check_targets(model.config(), one.rows);
    ForwardResult output{{}, model.loss(one.pass, state, one.rows, scale_)};
    if (!one.extra) losses_[static_cast<size_t>(index)] = tensor::item(output.loss.total.value());
    return output;
  }

  const MicroBatchSetup setup_;
  Placed batch_;
  const parallel::PipeEdges edges_;
  const std::unique_ptr<comm::Communicator> ends_;  // null where nothing is tied, and between the ends
  nn::Parameter* const tied_;
  std::vector<std::vector<autograd::Weight*>> weights_;  // by chunk
  parallel::PipelineRunner runner_;
  std::array<StagePlan, 2> plans_;  // of evaluation, of training
  std::vector<MicroBatch> micro_batches_;
  std::vector<double> losses_;
  std::optional<NotFiniteSearch> search_;  // while one is under way
  double scale_ = 1, tied_ms_ = 0;
};

}  // namespace

std::unique_ptr<MicroBatches> make_pipelined(const MicroBatchSetup& setup) {
  return std::make_unique<Pipelined>(setup);
}

}  // namespace esp::train
