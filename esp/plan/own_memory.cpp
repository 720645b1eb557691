#include "esp/plan/own_memory.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "esp/base/check.h"
#include "esp/comm/call.h"
#include "esp/model/model.h"
#include "esp/parallel/pp/steps.h"
#include "esp/parallel/regions.h"
#include "esp/plan/ghost/holders.h"
#include "esp/plan/ghost/layers.h"
#include "esp/plan/own_departures.h"
#include "esp/plan/own_pieces.h"

namespace esp::plan {
namespace {

using ghost::MemoryCategory;

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

bool wide(const Policy& p) {
  return p.precision == "fp32" || p.precision == "tf32";
}

// Simulates one rank's step.
class Rank {
 public:
  Rank(const ModelShape& shape, const Policy& policy, const OwnPlace& place, const OwnMemoryOptions& options)
      : shape_(shape), p_(policy), place_(place), options_(options), element_(wide(policy) ? 4 : 2) {
    const auto all = own_pieces(shape, p_.pp * chunks());
    for (size_t i = static_cast<size_t>(place.stage); i < all.size(); i += static_cast<size_t>(p_.pp))
      pieces_.push_back(all[i]);
    model::ModelPart part;
    part.shares = {{place.tensor, p_.tp}, {}};
    part.stem = part.head = false;
    for (const OwnPiece& piece : pieces_) {
      part.stem = part.stem || piece.stem;
      part.head = part.head || piece.head;
      part.blocks.push_back({piece.begin, piece.end});
    }
    part.all_blocks = false;
    model_ = model::make_model(config_of(shape), part);
    set_sizes();
    cut();
    hold();
  }

  // Calls of one step.
  std::vector<ghost::Call> calls() {
    account_.calls().clear();
    const bool all = true;
    p_.pp > 1 ? pipelined() : one_after_another(all);
    copies_agree();
    return account_.calls();
  }

  Memory run() {
    // The first step records the order of uses, the second prefetches by it.
    for (int i = 0; i < (p_.zero == 3 ? 2 : 1); ++i) p_.pp > 1 ? pipelined() : one_after_another(false);
    Memory m;
    const auto at = [&](MemoryCategory category) { return static_cast<double>(account_.at_peak(category)); };
    m.parameter = at(MemoryCategory::parameter);
    m.gradient = at(MemoryCategory::gradient);
    m.optimizer = at(MemoryCategory::optimizer);
    m.activation = at(MemoryCategory::activation);
    m.buffer = at(MemoryCategory::buffer) + at(MemoryCategory::other);
    m.stage = place_.stage;
    return m;
  }

 private:
  int chunks() const { return p_.pp > 1 ? p_.interleave : 1; }
  int copies() const { return p_.dp * p_.cp; }
  int64_t chunk_of(int64_t count) const {
    return static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(count), copies(), place_.copy).count);
  }

  void set_sizes() {
    ghost::Sizes& s = sizes_;
    const nn::Shard share{place_.tensor, p_.tp};
    const bool ulysses = p_.context == "ulysses";
    s.batch = p_.micro_batch;
    parallel::MeshShape mesh{p_.tp, p_.cp, p_.dp, p_.pp, 1};
    parallel::RegionOptions region;
    region.context = p_.context;
    const auto held = [&](int cp) {
      return parallel::tokens_held(mesh, {0, cp, 0, 0}, region, shape_.seq, shape_.causal).count();
    };
    s.context_rank = place_.copy % p_.cp;
    for (int c = 0; c < p_.cp; ++c) s.tokens_of.push_back(held(c));
    s.tokens = s.tokens_of[static_cast<size_t>(s.context_rank)];
    s.most_tokens = *std::max_element(s.tokens_of.begin(), s.tokens_of.end());
    s.length = shape_.seq;
    s.dim = shape_.hidden;
    s.heads = share.of(shape_.heads).count();
    s.kv_heads = share.of(shape_.kv_heads > 0 ? shape_.kv_heads : shape_.heads).count();
    s.head_dim = shape_.hidden / shape_.heads;
    s.ffn = share.of(shape_.ffn).count();
    s.gather_vocab_logits = shape_.vocab;
    s.classes = share.of(shape_.vocab).count();
    s.element = element_;
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

  // Buckets as sync builds them: parameters in reverse, the first bucket small; in stage 3 one per unit.
  void cut() {
    nn::ParameterList& list = model_->parameters();
    division_.element = element_;
    weights_.resize(list.all().size());
    for (const auto& unit : list.units()) division_.unit_counts.push_back(unit.count);
    size_t at = list.all().size();
    std::vector<const nn::Parameter*> order;
    for (const nn::Parameter& p : list.all()) order.push_back(&p);
    size_t last_unit = list.units().size();
    while (at-- > 0) {
      const nn::Parameter& p = *order[at];
      const auto limit =
          (division_.bucket_counts.size() <= 1 ? options_.first_bucket_mb : options_.bucket_mb) * (1 << 20);
      const bool begins =
          p_.zero == 3 ? static_cast<size_t>(p.unit) != last_unit
                       : division_.bucket_counts.empty() ||
                             static_cast<double>((division_.bucket_counts.back() + p.count()) * element_) > limit;
      if (begins) {
        division_.bucket_counts.push_back(0);
        division_.bucket_weights.push_back(0);
      }
      last_unit = static_cast<size_t>(p.unit);
      division_.bucket_counts.back() += p.count();
      ++division_.bucket_weights.back();
      ghost::Weight& w = weights_[at];
      w.unit = static_cast<size_t>(p.unit);
      w.bucket = division_.bucket_counts.size() - 1;
      w.count = p.count();
      w.partial = sizes_.sequence && p.partial;
      by_name_[p.name] = &w;
    }
    for (size_t i = 0; i < pieces_.size(); ++i) {
      blocks_.emplace_back();
      for (int64_t b = pieces_[i].begin; b < pieces_[i].end; ++b) blocks_.back().push_back(block_weights(b));
    }
  }

  ghost::Weight* find(const std::string& name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  ghost::BlockWeights block_weights(int64_t index) {
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

  void keep(MemoryCategory category, int64_t bytes) {
    kept_.push_back(std::make_shared<ghost::Piece>(account_, category, bytes));
  }

  // Permanent allocations.
  void hold() {
    const int64_t count = model_->parameters().count();
    const auto& buckets = division_.bucket_counts;
    int64_t owned = 0;
    for (const int64_t one : buckets) owned += chunk_of(one);
    if (p_.zero == 0) owned = count;
    keep(MemoryCategory::parameter, (p_.zero == 3 ? owned : count) * element_);
    keep(MemoryCategory::gradient, (p_.zero >= 2 ? owned : count) * element_);
    const int64_t moments = p_.optimizer == "sgd" ? 4 : 8;
    keep(MemoryCategory::optimizer, owned * (moments + (element_ == 2 ? static_cast<int64_t>(p_.master_bytes) : 0)));
    if (p_.pp > 1 && shape_.tied) ordered_norm();
    const size_t flying = p_.zero == 3 && copies() == 1 ? 1 : 2;
    if (p_.zero == 3)
      holder_ = std::make_unique<ghost::WindowedValues>(account_, division_, flying, options_.local, options_.prefetch,
                                                        p_.keep_gathered);
    else if (p_.zero == 2)
      holder_ = std::make_unique<ghost::ScatteredGradients>(account_, division_, flying, options_.local);
    else
      holder_ = std::make_unique<ghost::Holder>();
    scattered_ = dynamic_cast<ghost::ScatteredGradients*>(holder_.get());
    if (!sizes_.sequence) return;
    std::vector<int> parts(division_.unit_counts.size());
    for (const ghost::Weight& weight : weights_) parts[weight.unit] += weight.partial ? 1 : 0;
    auto summed = std::make_unique<ghost::SummedParts>(account_, std::move(holder_), std::move(parts), element_);
    summed_ = summed.get();
    holder_ = std::move(summed);
  }

  // Sums of squares by block, so that stages that shard tied tables differently sum in one order: a sum per block, and
  // the blocks that span shard boundaries.
  void ordered_norm() {
    constexpr int64_t kBlock = 4096;
    int64_t blocks = 0, cut_blocks = 0, first = 0;
    std::vector<int64_t> cuts;
    if (p_.zero > 0) {
      int64_t end = model_->parameters().count();
      for (const int64_t one : division_.bucket_counts) {
        const int64_t begin = end - one;
        for (int k = 0; k < copies(); ++k)
          cuts.push_back(begin + static_cast<int64_t>(comm::chunk_of(static_cast<size_t>(one), copies(), k).offset));
        end = begin;
      }
    }
    // The boundary of a counted range is treated as a shard boundary.
    for (const nn::Parameter& p : model_->parameters().all()) {
      if (p.counted) continue;
      const int64_t at = model_->parameters().units()[static_cast<size_t>(p.unit)].first + p.offset;
      cuts.insert(cuts.end(), {at, at + p.count()});
    }
    std::sort(cuts.begin(), cuts.end());
    for (const int64_t unit : division_.unit_counts) {
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
    keep(MemoryCategory::buffer, blocks * 8);
    if (cut_blocks > 0) keep(MemoryCategory::buffer, cut_blocks * kBlock * element_);
  }

  ghost::StemWeights stem_weights() { return {find("embedding.weight"), find("positions.weight")}; }
  ghost::HeadWeights head_weights() {
    ghost::Weight* own = find("head.weight");
    return {find("norm.weight"), find("norm.bias"), own ? own : find("embedding.weight"), find("head.bias")};
  }

  ghost::Tensor one_number() { return std::make_shared<ghost::Piece>(account_, MemoryCategory::other, 8); }

  // Where gradients persist, one micro-batch represents all.
  void one_after_another(bool all) {
    ghost::Tape tape(account_, *holder_);
    const int64_t passes = all || p_.zero >= 2 ? p_.num_micro_batches() : 1;
    for (int64_t i = 0; i < passes; ++i) {
      if (scattered_) scattered_->last_pass = i + 1 == passes;
      if (summed_) summed_->leaving = p_.zero >= 2 || i + 1 == passes;
      holder_->begin_pass();
      {
        ghost::Loss loss;
        {
          const ghost::Variable hidden =
              ghost::blocks(tape, sizes_, blocks_.front(), ghost::stem(tape, sizes_, stem_weights()));
          loss = ghost::loss(tape, sizes_, head_weights(), hidden);
        }
        holder_->begin_backward();
        tape.give_gradient(loss.total.slot, one_number());
        tape.backward();
      }
      tape.clear();
      holder_->end_pass();
    }
    holder_->finish();
  }

  // Buckets that are views of persistent gradients, and weights after the step; the two tables of a tied pair.
  void copies_agree() {
    const auto note = [&](comm::Op op, parallel::MeshAxis axis, int64_t count) {
      account_.note({axis, op, count, element_});
    };
    if (p_.pp > 1 && shape_.tied && (place_.stage == 0 || place_.stage + 1 == p_.pp))
      note(comm::Op::all_reduce, parallel::MeshAxis::pipe, find("embedding.weight")->count);
    if (p_.tp * p_.pp > 1)  // sums of squares of every unit
      account_.note({parallel::MeshAxis::model, comm::Op::all_gather, (shape_.layers + 2) * p_.tp * p_.pp, 8});
    for (const int64_t count : division_.bucket_counts) {
      if (p_.zero == 0) note(comm::Op::all_reduce, parallel::MeshAxis::replicas, count);
      if (p_.zero == 1) note(comm::Op::reduce_scatter, parallel::MeshAxis::replicas, count);
      if (p_.zero == 1 || p_.zero == 2) note(comm::Op::all_gather, parallel::MeshAxis::replicas, count);
    }
  }

  struct Live {
    explicit Live(ghost::Account& account, ghost::Holder& holder) : tape(account, holder) {}
    ghost::Tape tape;
    int input = -1, output = -1, loss = -1;
  };

  void pipelined() {
    const parallel::ScheduleShape pipe{p_.pp, chunks(), static_cast<int>(p_.num_micro_batches())};
    const parallel::StagePlan plan = parallel::plan_of(parallel::make_schedule(p_.schedule, pipe), place_.stage);
    const bool split = plan.backward == parallel::Backward::split;
    std::map<std::pair<int, int>, std::unique_ptr<Live>> live;
    std::map<std::tuple<parallel::ActionKind, int, int>, ghost::Tensor> arrived;
    const Departures departures(shape_, p_, pipe, place_.stage);
    ghost::Tensor outgoing;
    std::vector<std::pair<double, ghost::Tensor>> sending;  // with the time at which each is received
    holder_->begin_pass();
    for (ghost::Weight& weight : weights_) ++weight.pending;  // until the last micro-batch's backward
    // A tied table is summed over both ends before it is counted.
    ghost::Weight* tied = shape_.tied ? find("embedding.weight") : nullptr;
    if (tied) ++tied->pending;
    for (const parallel::StageStep& step : plan.steps) {
      const parallel::PipelineAction& a = step.action;
      const auto key = std::make_tuple(a.kind, a.chunk, a.micro_batch);
      if (step.kind == parallel::StepKind::receive) {
        arrived[key] = std::make_shared<ghost::Piece>(account_, MemoryCategory::buffer, sizes_.stream_bytes());
        continue;
      }
      if (step.kind == parallel::StepKind::send) {
        account_.note({parallel::MeshAxis::pipe, comm::Op::send, sizes_.stream_bytes() / element_, element_});
        const double now = departures.begun(a);
        std::erase_if(sending, [&](const auto& one) { return one.first <= now; });
        sending.emplace_back(departures.taken(a), std::exchange(outgoing, {}));
        continue;
      }
      auto& one = live[{a.chunk, a.micro_batch}];
      if (a.kind == parallel::ActionKind::forward) {
        one = std::make_unique<Live>(account_, *holder_);
        outgoing = forward(*one, a.chunk, std::exchange(arrived[key], {}));
      } else if (a.kind == parallel::ActionKind::backward) {
        if (a.micro_batch + 1 == pipe.micro_batches) let_go(a.chunk);
        if (ghost::Tensor gradient = std::exchange(arrived[key], {}); gradient && one->output >= 0)
          one->tape.give_gradient(one->output, std::move(gradient));
        if (one->loss >= 0) one->tape.give_gradient(one->loss, one_number());
        split ? one->tape.backward_inputs() : one->tape.backward();
        if (one->input >= 0) outgoing = one->tape.take_gradient(one->input);
        if (!split) one.reset();
      } else {
        one->tape.backward_weights();
        one.reset();
      }
    }
    if (tied) release(*tied);
    holder_->end_pass();
    holder_->finish();
  }

  void release(ghost::Weight& weight) {
    if (--weight.pending > 0) return;
    holder_->gradient(weight);
    holder_->ready(weight);
  }

  ghost::Tensor forward(Live& live, int chunk, ghost::Tensor input) {
    const OwnPiece& piece = pieces_[static_cast<size_t>(chunk)];
    ghost::Variable state;
    if (piece.stem) {
      state = ghost::stem(live.tape, sizes_, stem_weights());
    } else {
      state = live.tape.leaf(std::move(input));
      live.input = state.slot;
    }
    state = ghost::blocks(live.tape, sizes_, blocks_[static_cast<size_t>(chunk)], state);
    if (!piece.head) {
      live.output = state.slot;
      return state.value;
    }
    live.loss = ghost::loss(live.tape, sizes_, head_weights(), state).total.slot;
    return {};
  }

  void let_go(int chunk) {
    const OwnPiece& piece = pieces_[static_cast<size_t>(chunk)];
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
  const OwnPlace place_;
  const OwnMemoryOptions options_;
  const int64_t element_;
  std::vector<OwnPiece> pieces_;
  std::unique_ptr<model::Model> model_;  // shapes only, no memory
  ghost::Sizes sizes_;
  ghost::Account account_;
  ghost::Division division_;
  std::vector<ghost::Weight> weights_;  // by index in the list
  std::map<std::string, ghost::Weight*> by_name_;
  std::vector<std::vector<ghost::BlockWeights>> blocks_;  // by chunk
  std::vector<ghost::Tensor> kept_;
  std::unique_ptr<ghost::Holder> holder_;
  ghost::SummedParts* summed_ = nullptr;
  ghost::ScatteredGradients* scattered_ = nullptr;  // owned by the holder, if any
};

}  // namespace

bool has_own_memory(const ModelShape& shape, const Policy& policy) {
  return policy.software == "espalier" && (shape.arch == "gpt" || shape.arch == "llama") && shape.experts == 0 &&
         shape.layers > 0 && shape.hidden > 0 && policy.offload == OffloadTarget::none && policy.ep == 1 &&
         policy.flash && policy.shard_group == 0 && !policy.quantised_weights && !policy.secondary_shard &&
         !policy.quantised_gradients;
}

Memory own_memory(const ModelShape& shape, const Policy& policy, const OwnPlace& place,
                  const OwnMemoryOptions& options) {
  return Rank(shape, policy, place, options).run();
}

std::vector<ghost::Call> own_calls(const ModelShape& shape, const Policy& policy, const OwnPlace& place,
                                   const OwnMemoryOptions& options, bool first) {
  Rank rank(shape, policy, place, options);
  std::vector<ghost::Call> calls = rank.calls();
  return first ? calls : rank.calls();
}

std::vector<Memory> own_memories(const ModelShape& shape, const Policy& policy, const OwnMemoryOptions& options) {
  std::vector<Memory> all;
  for (int stage = 0; stage < policy.pp; ++stage) all.push_back(own_memory(shape, policy, {stage, 0, 0}, options));
  return all;
}

}  // namespace esp::plan
