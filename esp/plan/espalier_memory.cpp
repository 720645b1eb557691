#include "esp/plan/espalier_memory.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/comm/call.h"
#include "esp/model/model.h"
#include "esp/parallel/model_parallel_ops.h"
#include "esp/parallel/pp/steps.h"
#include "esp/plan/dry_run/layers.h"
#include "esp/plan/dry_run/strategy_hooks.h"
#include "esp/plan/espalier_pieces.h"
#include "esp/plan/message_times.h"

namespace esp::plan {
namespace {

using dry_run::MemoryCategory;

model::ModelConfig config_of(const ModelShape& s) {
  model::ModelConfig c = model::default_config(s.arch);
  c.layers = s.layers;
  c.heads = s.heads;
  c.kv_heads = s.kv_heads > 0 ? s.kv_heads : s.heads;
  c.dim = s.hidden;
  c.ffn = s.ffn;
  c.vocab = s.vocab;
  c.seq_len = s.seq;
  c.gated = s.gated;
  c.norm = s.rms ? kernel::NormKind::rms : kernel::NormKind::layer;
  c.bias = s.bias;
  c.tie_embeddings = s.tied;
  c.positions = s.learned_positions ? model::Positions::learned : model::Positions::rotary;
  return c;
}

bool is_fp32(const Policy& p) {
  return p.precision == "fp32" || p.precision == "tf32";
}

// Dry run of one rank's training step.
class RankDryRun {
 public:
  RankDryRun(const ModelShape& shape, const Policy& policy, const EspalierRank& rank,
             const EspalierMemoryOptions& options)
      : shape_(shape), p_(policy), rank_(rank), options_(options), element_bytes_(is_fp32(policy) ? 4 : 2) {
    const auto all = espalier_pieces(shape, p_.pp * chunks());
    for (size_t i = static_cast<size_t>(rank.stage); i < all.size(); i += static_cast<size_t>(p_.pp))
      pieces_.push_back(all[i]);
    model::ModelPart part;
    part.shards = {{rank.tensor, p_.tp}, {}};
    part.stem = part.head = false;
    for (const EspalierPiece& piece : pieces_) {
      part.stem = part.stem || piece.stem;
      part.head = part.head || piece.head;
      part.blocks.push_back({piece.begin, piece.end});
    }
    part.all_blocks = false;
    model_ = model::make_model(config_of(shape), part);
    set_sizes();
    build_buckets();
    allocate_states();
  }

  // The communicator calls of one step.
  std::vector<dry_run::CommCall> calls() {
    recorder_.calls().clear();
    const bool all = true;
    p_.pp > 1 ? run_pipeline() : run_micro_batches(all);
    record_sync_calls();
    return recorder_.calls();
  }

  Memory run() {
    // ZeRO 3 needs two steps: the first records the order in which units are used, the second prefetches in that order.
    for (int i = 0; i < (p_.zero == 3 ? 2 : 1); ++i) p_.pp > 1 ? run_pipeline() : run_micro_batches(false);
    Memory m;
    const auto at = [&](MemoryCategory category) { return static_cast<double>(recorder_.at_peak(category)); };
    m.parameter = at(MemoryCategory::parameter);
    m.gradient = at(MemoryCategory::gradient);
    m.optimizer = at(MemoryCategory::optimizer);
    m.activation = at(MemoryCategory::activation);
    m.buffer = at(MemoryCategory::buffer) + at(MemoryCategory::other);
    m.stage = rank_.stage;
    return m;
  }

 private:
  int chunks() const { return p_.pp > 1 ? p_.interleave : 1; }
  int num_replicas() const { return p_.dp * p_.cp; }
  int64_t chunk_of(int64_t count) const {
    return static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(count), num_replicas(), rank_.replica).count);
  }

  void set_sizes() {
    dry_run::RankSizes& s = sizes_;
    const nn::Shard share{rank_.tensor, p_.tp};
    const bool ulysses = p_.context == "ulysses";
    s.batch = p_.micro_batch;
    parallel::MeshShape mesh{p_.tp, p_.cp, p_.dp, p_.pp, 1};
    parallel::ModelParallelOptions region;
    region.context = p_.context;
    const auto held = [&](int cp) {
      return parallel::local_tokens(mesh, {0, cp, 0, 0}, region, shape_.seq, shape_.causal).count();
    };
    s.context_rank = rank_.replica % p_.cp;
    for (int c = 0; c < p_.cp; ++c) s.tokens_of.push_back(held(c));
    s.tokens = s.tokens_of[static_cast<size_t>(s.context_rank)];
    s.max_tokens = *std::max_element(s.tokens_of.begin(), s.tokens_of.end());
    s.length = shape_.seq;
    s.dim = shape_.hidden;
    s.heads = share.of(shape_.heads).count();
    s.kv_heads = share.of(shape_.kv_heads > 0 ? shape_.kv_heads : shape_.heads).count();
    s.head_dim = shape_.hidden / shape_.heads;
    s.ffn = share.of(shape_.ffn).count();
    s.vocab = shape_.vocab;
    s.classes = share.of(shape_.vocab).count();
    s.element_bytes = element_bytes_;
    s.device = options_.device;
    s.tp = p_.tp, s.cp = p_.cp, s.threads = std::max(1, p_.threads);
    s.sequence = p_.sequence && p_.tp > 1;
    s.ulysses = ulysses;
    s.layer_norm = !shape_.rms, s.gated = shape_.gated, s.rotary = !shape_.learned_positions;
    s.causal = shape_.causal;
    s.dropout = p_.dropout ? 0.1 : 0;
    s.recompute_full = p_.recompute == RecomputePolicy::full;
    s.recompute_selective = p_.recompute == RecomputePolicy::selective;
    if (p_.recompute_layers >= 0) {
      const auto num_pieces = static_cast<int64_t>(std::max<size_t>(1, pieces_.size()));
      s.recompute_layers = (p_.recompute_layers + num_pieces - 1) / num_pieces;
    }
  }

  // Gradient buckets as esp/sync builds them: parameters in reverse order, with a small first bucket. With ZeRO 3 each
  // unit is one bucket.
  void build_buckets() {
    nn::ParameterList& list = model_->parameters();
    bucket_sizes_.element_bytes = element_bytes_;
    weights_.resize(list.all().size());
    for (const auto& unit : list.units()) bucket_sizes_.unit_counts.push_back(unit.count);
    size_t at = list.all().size();
    std::vector<const nn::Parameter*> order;
    for (const nn::Parameter& p : list.all()) order.push_back(&p);
    size_t last_unit = list.units().size();
    while (at-- > 0) {
      const nn::Parameter& p = *order[at];
      const auto limit =
          (bucket_sizes_.bucket_counts.size() <= 1 ? options_.first_bucket_mb : options_.bucket_mb) * (1 << 20);
      const auto bytes_with = [&](const nn::Parameter& next) {
        return static_cast<double>((bucket_sizes_.bucket_counts.back() + next.count()) * element_bytes_);
      };
      const bool begins = p_.zero == 3 ? static_cast<size_t>(p.unit) != last_unit
                                       : bucket_sizes_.bucket_counts.empty() || bytes_with(p) > limit;
      if (begins) {
        bucket_sizes_.bucket_counts.push_back(0);
        bucket_sizes_.weights_per_bucket.push_back(0);
      }
      last_unit = static_cast<size_t>(p.unit);
      bucket_sizes_.bucket_counts.back() += p.count();
      ++bucket_sizes_.weights_per_bucket.back();
      dry_run::DryRunWeight& w = weights_[at];
      w.unit = static_cast<size_t>(p.unit);
      w.bucket = bucket_sizes_.bucket_counts.size() - 1;
      w.count = p.count();
      w.partial = sizes_.sequence && p.partial;
      by_name_[p.name] = &w;
    }
    for (size_t i = 0; i < pieces_.size(); ++i) {
      blocks_.emplace_back();
      for (int64_t b = pieces_[i].begin; b < pieces_[i].end; ++b) blocks_.back().push_back(block_weights(b));
    }
  }

  dry_run::DryRunWeight* find(const std::string& name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  dry_run::BlockWeights block_weights(int64_t index) {
    const std::string b = fmt::format("blocks.{}.", index), up = b + (shape_.gated ? "mlp.gate_up" : "mlp.up");
    return {find(b + "norm1.weight"),
            find(b + "norm1.bias"),
            find(b + "attention.qkv.weight"),
            find(b + "attention.qkv.bias"),
            find(b + "attention.out.weight"),
            find(b + "attention.out.bias"),
            find(b + "norm2.weight"),
            find(b + "norm2.bias"),
            find(up + ".weight"),
            find(up + ".bias"),
            find(b + "mlp.down.weight"),
            find(b + "mlp.down.bias")};
  }

  void allocate_permanent(MemoryCategory category, int64_t bytes) {
    permanent_.push_back(std::make_shared<dry_run::CountedBuffer>(recorder_, category, bytes));
  }

  // Allocates the buffers that exist during the whole run: parameters, gradients, optimizer states.
  void allocate_states() {
    const int64_t count = model_->parameters().count();
    const auto& buckets = bucket_sizes_.bucket_counts;
    int64_t owned = 0;
    for (const int64_t one : buckets) owned += chunk_of(one);
    if (p_.zero == 0) owned = count;
    allocate_permanent(MemoryCategory::parameter, (p_.zero == 3 ? owned : count) * element_bytes_);
    allocate_permanent(MemoryCategory::gradient, (p_.zero >= 2 ? owned : count) * element_bytes_);
    const int64_t moments = p_.optimizer == "sgd" ? 4 : 8;
    allocate_permanent(MemoryCategory::optimizer,
                       owned * (moments + (element_bytes_ == 2 ? static_cast<int64_t>(p_.master_bytes) : 0)));
    if (p_.pp > 1 && shape_.tied) ordered_norm();
    const size_t max_in_flight = p_.zero == 3 && num_replicas() == 1 ? 1 : 2;
    if (p_.zero == 3)
      hooks_ = std::make_unique<dry_run::Zero3Hooks>(recorder_, bucket_sizes_, max_in_flight, options_.local,
                                                     options_.prefetch, p_.keep_gathered);
    else if (p_.zero == 2)
      hooks_ = std::make_unique<dry_run::Zero2Hooks>(recorder_, bucket_sizes_, max_in_flight, options_.local);
    else
      hooks_ = std::make_unique<dry_run::StrategyHooks>();
    scattered_ = dynamic_cast<dry_run::Zero2Hooks*>(hooks_.get());
    if (!sizes_.sequence) return;
    std::vector<int> parts(bucket_sizes_.unit_counts.size());
    for (const dry_run::DryRunWeight& weight : weights_) parts[weight.unit] += weight.partial ? 1 : 0;
    auto summed =
        std::make_unique<dry_run::PartialSumHooks>(recorder_, std::move(hooks_), std::move(parts), element_bytes_);
    summed_ = summed.get();
    hooks_ = std::move(summed);
  }

  // Buffers of the gradient norm if the table is tied: one sum of squares per block, and a copy of every block that a
  // shard boundary cuts. Sums per block make the order of additions independent of the sharding. That matters because
  // the first and the last stage shard the tied table differently.
  void ordered_norm() {
    constexpr int64_t kBlock = 4096;
    int64_t blocks = 0, cut_blocks = 0, first = 0;
    std::vector<int64_t> cuts;
    if (p_.zero > 0) {
      int64_t end = model_->parameters().count();
      for (const int64_t one : bucket_sizes_.bucket_counts) {
        const int64_t begin = end - one;
        for (int k = 0; k < num_replicas(); ++k)
          cuts.push_back(begin +
                         static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(one), num_replicas(), k).offset));
        end = begin;
      }
    }
    // A parameter that is excluded from the norm cuts blocks at both its ends, as a shard boundary does.
    for (const nn::Parameter& p : model_->parameters().all()) {
      if (p.counted) continue;
      const int64_t at = model_->parameters().units()[static_cast<size_t>(p.unit)].first + p.offset;
      cuts.insert(cuts.end(), {at, at + p.count()});
    }
    std::sort(cuts.begin(), cuts.end());
    for (const int64_t unit : bucket_sizes_.unit_counts) {
      blocks += (unit + kBlock - 1) / kBlock;
      int64_t last = -1;
      for (const int64_t cut : cuts) {
        const int64_t at = cut - first;
        if (at <= 0 || at >= unit || at % kBlock == 0 || at / kBlock == last) continue;
        last = at / kBlock;
        ++cut_blocks;
      }
      first += unit;
    }
    allocate_permanent(MemoryCategory::buffer, blocks * 8);
    if (cut_blocks > 0) allocate_permanent(MemoryCategory::buffer, cut_blocks * kBlock * element_bytes_);
  }

  dry_run::StemWeights stem_weights() { return {find("embedding.weight"), find("positions.weight")}; }
  dry_run::HeadWeights head_weights() {
    dry_run::DryRunWeight* own = find("head.weight");
    return {find("norm.weight"), find("norm.bias"), own ? own : find("embedding.weight"), find("head.bias")};
  }

  dry_run::BufferHandle one_number() {
    return std::make_shared<dry_run::CountedBuffer>(recorder_, MemoryCategory::other, 8);
  }

  // With ZeRO 0 and 1 gradients persist and every micro-batch has the same peak, so one micro-batch is simulated unless
  // `all` is set.
  void run_micro_batches(bool all) {
    dry_run::DryRunTape tape(recorder_, *hooks_);
    const int64_t passes = all || p_.zero >= 2 ? p_.num_micro_batches() : 1;
    for (int64_t i = 0; i < passes; ++i) {
      if (scattered_) scattered_->last_pass = i + 1 == passes;
      if (summed_) summed_->sends_gradients = p_.zero >= 2 || i + 1 == passes;
      hooks_->begin_pass();
      {
        dry_run::DryRunLoss loss;
        {
          const dry_run::DryRunVariable hidden =
              dry_run::blocks(tape, sizes_, blocks_.front(), dry_run::stem(tape, sizes_, stem_weights()));
          loss = dry_run::loss(tape, sizes_, head_weights(), hidden);
        }
        hooks_->begin_backward();
        tape.add_gradient(loss.total.slot, one_number());
        tape.backward();
      }
      tape.clear();
      hooks_->end_pass();
    }
    hooks_->finish();
  }

  // Records the calls at the end of the step: buckets of ZeRO 0 and 1, weight gathers of ZeRO 1 and 2, the all-reduce
  // of a tied table between the first and the last stage, and the norm.
  void record_sync_calls() {
    const auto note = [&](comm::Op op, parallel::MeshAxis axis, int64_t count) {
      recorder_.record_call({axis, op, count, element_bytes_});
    };
    if (p_.pp > 1 && shape_.tied && (rank_.stage == 0 || rank_.stage + 1 == p_.pp))
      note(comm::Op::all_reduce, parallel::MeshAxis::pipe, find("embedding.weight")->count);
    if (p_.tp * p_.pp > 1)  // the gradient norm needs the sum of squares of every unit
      recorder_.record_call({parallel::MeshAxis::model, comm::Op::all_gather, (shape_.layers + 2) * p_.tp * p_.pp, 8});
    for (const int64_t count : bucket_sizes_.bucket_counts) {
      if (p_.zero == 0) note(comm::Op::all_reduce, parallel::MeshAxis::replicas, count);
      if (p_.zero == 1) note(comm::Op::reduce_scatter, parallel::MeshAxis::replicas, count);
      if (p_.zero == 1 || p_.zero == 2) note(comm::Op::all_gather, parallel::MeshAxis::replicas, count);
    }
  }

  struct LiveMicroBatch {
    explicit LiveMicroBatch(dry_run::DryRunRecorder& recorder, dry_run::StrategyHooks& hooks) : tape(recorder, hooks) {}
    dry_run::DryRunTape tape;
    int input = -1, output = -1, loss = -1;
  };

  void run_pipeline() {
    const parallel::ScheduleShape pipe{p_.pp, chunks(), static_cast<int>(p_.num_micro_batches())};
    const parallel::StagePlan plan = parallel::plan_of(parallel::make_schedule(p_.schedule, pipe), rank_.stage);
    const bool split = plan.backward == parallel::Backward::split;
    std::map<std::pair<int, int>, std::unique_ptr<LiveMicroBatch>> live;
    std::map<std::tuple<parallel::ActionKind, int, int>, dry_run::BufferHandle> arrived;
    const MessageTimes message_times(shape_, p_, pipe, rank_.stage);
    dry_run::BufferHandle outgoing;
    std::vector<std::pair<double, dry_run::BufferHandle>> sending;  // (time when the receiver has the message, buffer)
    hooks_->begin_pass();
    // defers every gradient until the backward of the last micro-batch
    for (dry_run::DryRunWeight& weight : weights_) ++weight.pending;
    // The gradient of a tied table is ready only after the first and the last stage have summed it.
    dry_run::DryRunWeight* tied = shape_.tied ? find("embedding.weight") : nullptr;
    if (tied) ++tied->pending;
    for (const parallel::StageStep& step : plan.steps) {
      const parallel::PipelineAction& a = step.action;
      const auto key = std::make_tuple(a.kind, a.chunk, a.micro_batch);
      if (step.kind == parallel::StepKind::receive) {
        arrived[key] =
            std::make_shared<dry_run::CountedBuffer>(recorder_, MemoryCategory::buffer, sizes_.stream_bytes());
        continue;
      }
      if (step.kind == parallel::StepKind::send) {
        recorder_.record_call(
            {parallel::MeshAxis::pipe, comm::Op::send, sizes_.stream_bytes() / element_bytes_, element_bytes_});
        const double now = message_times.sent_s(a);
        std::erase_if(sending, [&](const auto& one) { return one.first <= now; });
        sending.emplace_back(message_times.received_s(a), std::exchange(outgoing, {}));
        continue;
      }
      auto& one = live[{a.chunk, a.micro_batch}];
      if (a.kind == parallel::ActionKind::forward) {
        one = std::make_unique<LiveMicroBatch>(recorder_, *hooks_);
        outgoing = forward(*one, a.chunk, std::exchange(arrived[key], {}));
      } else if (a.kind == parallel::ActionKind::backward) {
        if (a.micro_batch + 1 == pipe.micro_batches) release_weights(a.chunk);
        if (dry_run::BufferHandle gradient = std::exchange(arrived[key], {}); gradient && one->output >= 0)
          one->tape.add_gradient(one->output, std::move(gradient));
        if (one->loss >= 0) one->tape.add_gradient(one->loss, one_number());
        split ? one->tape.backward_inputs() : one->tape.backward();
        if (one->input >= 0) outgoing = one->tape.take_gradient(one->input);
        if (!split) one.reset();
      } else {
        one->tape.backward_weights();
        one.reset();
      }
    }
    if (tied) release(*tied);
    hooks_->end_pass();
    hooks_->finish();
  }

  void release(dry_run::DryRunWeight& weight) {
    if (--weight.pending > 0) return;
    hooks_->gradient(weight);
    hooks_->ready(weight);
  }

  dry_run::BufferHandle forward(LiveMicroBatch& live, int chunk, dry_run::BufferHandle input) {
    const EspalierPiece& piece = pieces_[static_cast<size_t>(chunk)];
    dry_run::DryRunVariable state;
    if (piece.stem) {
      state = dry_run::stem(live.tape, sizes_, stem_weights());
    } else {
      state = live.tape.leaf(std::move(input));
      live.input = state.slot;
    }
    state = dry_run::blocks(live.tape, sizes_, blocks_[static_cast<size_t>(chunk)], state);
    if (!piece.head) {
      live.output = state.slot;
      return state.value;
    }
    live.loss = dry_run::loss(live.tape, sizes_, head_weights(), state).total.slot;
    return {};
  }

  void release_weights(int chunk) {
    const EspalierPiece& piece = pieces_[static_cast<size_t>(chunk)];
    for (auto& [name, weight] : by_name_) {
      bool mine = (piece.stem && (name.starts_with("embedding.") || name.starts_with("positions."))) ||
                  (piece.head && (name.starts_with("norm.") || name.starts_with("head.") ||
                                  (!piece.stem && name.starts_with("embedding."))));
      for (int64_t b = piece.begin; b < piece.end && !mine; ++b) mine = name.starts_with(fmt::format("blocks.{}.", b));
      if (mine) release(*weight);
    }
  }

  const ModelShape& shape_;
  const Policy& p_;
  const EspalierRank rank_;
  const EspalierMemoryOptions options_;
  const int64_t element_bytes_;
  std::vector<EspalierPiece> pieces_;
  std::unique_ptr<model::Model> model_;  // has shapes only; its tensors have no memory
  dry_run::RankSizes sizes_;
  dry_run::DryRunRecorder recorder_;
  dry_run::BucketSizes bucket_sizes_;
  std::vector<dry_run::DryRunWeight> weights_;  // indexed as the parameter list of model_
  std::map<std::string, dry_run::DryRunWeight*> by_name_;
  std::vector<std::vector<dry_run::BlockWeights>> blocks_;  // indexed by chunk, then block
  std::vector<dry_run::BufferHandle> permanent_;
  std::unique_ptr<dry_run::StrategyHooks> hooks_;
  dry_run::PartialSumHooks* summed_ = nullptr;
  dry_run::Zero2Hooks* scattered_ = nullptr;  // null if the strategy has no buckets; owned by hooks_
};

}  // namespace

bool has_espalier_memory(const ModelShape& shape, const Policy& policy) {
  return policy.software == "espalier" && (shape.arch == "gpt" || shape.arch == "llama") && shape.experts == 0 &&
         shape.layers > 0 && shape.hidden > 0 && policy.offload == OffloadTarget::none && policy.ep == 1 &&
         policy.flash && policy.shard_group == 0 && !policy.quantised_weights && !policy.secondary_shard &&
         !policy.quantised_gradients;
}

Memory espalier_memory(const ModelShape& shape, const Policy& policy, const EspalierRank& rank,
                       const EspalierMemoryOptions& options) {
  return RankDryRun(shape, policy, rank, options).run();
}

std::vector<dry_run::CommCall> espalier_calls(const ModelShape& shape, const Policy& policy, const EspalierRank& rank,
                                              const EspalierMemoryOptions& options, bool first) {
  RankDryRun run(shape, policy, rank, options);
  std::vector<dry_run::CommCall> calls = run.calls();
  return first ? calls : run.calls();
}

std::vector<Memory> espalier_stage_memories(const ModelShape& shape, const Policy& policy,
                                            const EspalierMemoryOptions& options) {
  std::vector<Memory> all;
  for (int stage = 0; stage < policy.pp; ++stage) all.push_back(espalier_memory(shape, policy, {stage, 0, 0}, options));
  return all;
}

}  // namespace esp::plan
