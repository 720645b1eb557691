#include "apps/espalier/lab_moe_runs.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "esp/base/rng.h"
#include "esp/comm/communicator.h"
#include "esp/kernel/elementwise.h"
#include "esp/model/model.h"
#include "esp/net/inproc/threads.h"
#include "esp/nn/moe/moe.h"
#include "esp/nn/moe/routing_report.h"
#include "esp/nn/parallel_ops.h"
#include "esp/optim/optimizer.h"
#include "esp/parallel/ep/expert_parallel.h"

namespace esp::app {
namespace {

using device::MemoryCategory;
using tensor::Tensor;

constexpr int64_t kVocab = 128, kSubjects = 8;
constexpr Duration kTimeout = std::chrono::minutes(2);

model::ModelConfig config_of(const MoeLabOptions& o, double aux, double capacity) {
  model::ModelConfig c = model::default_config("gpt");
  c.layers = 2;
  c.heads = 4;
  c.dim = o.dim;
  c.ffn = o.ffn;
  c.vocab = kVocab;
  c.seq_len = o.seq;
  c.experts = o.experts;
  c.experts_per_token = o.chosen;
  c.expert_aux = aux;
  c.expert_capacity = capacity;
  return c;
}

// Generates sequences. Each belongs to one of a few subjects, which differ in frequency, in token ids, and in the rule
// for the next token. Without the load-balancing loss, the expert loads follow these frequencies.
void fill_tokens(const MoeLabOptions& o, uint64_t batch, const Tensor& inputs, const Tensor& targets) {
  const auto draw = [&](int64_t s, int64_t i) {
    return random_bits(o.seed, 1 + batch, static_cast<uint64_t>(s * (o.seq + 2) + i));
  };
  constexpr int64_t kWords = kVocab / kSubjects;
  for (int64_t s = 0; s < o.batch; ++s) {
    int64_t subject = 0;
    for (uint64_t bits = draw(s, 0); (bits & 1) && subject + 1 < kSubjects; bits >>= 1) ++subject;
    int64_t word = static_cast<int64_t>(draw(s, 1) % kWords);
    for (int64_t t = 0; t <= o.seq; ++t) {
      const auto id = static_cast<int32_t>(subject * kWords + word);
      if (t < o.seq) inputs.as<int32_t>()[s * o.seq + t] = id;
      if (t > 0) targets.as<int32_t>()[s * o.seq + t - 1] = id;
      const uint64_t bits = draw(s, 2 + t);
      word = bits % 8 == 0 ? static_cast<int64_t>(bits / 8 % kWords) : (word * 5 + 2 * subject + 1) % kWords;
    }
  }
}

class ExpertParallelOps final : public nn::ParallelOps {
 public:
  explicit ExpertParallelOps(const nn::TokenDispatcher& exchange) : exchange_(exchange) {}
  const nn::TokenDispatcher& experts() const override { return exchange_; }

 private:
  const nn::TokenDispatcher& exchange_;
};

// Memory, threads and tape of one training run.
struct TrainingState {
  device::MemoryAccount account;
  device::MemoryPool pool{account};
  device::ThreadPool threads{1};
  tensor::Context context{{{}, &threads, nullptr}, &pool};
  autograd::Tape tape{context};
};

}  // namespace

struct MoeTraining::Impl {
  MoeLabOptions options;
  TrainingState place;
  std::unique_ptr<model::Model> model;
  model::ModelBatch batch;
  uint64_t next_batch = 1;  // batch 0 is held out for evaluation

  Impl(const MoeLabOptions& o, double aux) : options(o), model(model::make_model(config_of(o, aux, 0))) {
    model->parameters().materialize(place.context, DType::f32, true);
    model->parameters().initialise(o.seed, place.context.stream);
    for (Tensor* t : {&batch.inputs, &batch.targets})
      *t = tensor::empty(place.context, {o.batch, o.seq}, DType::i32, MemoryCategory::other);
  }
  nn::ForwardContext pass(bool training, nn::RoutingReport* report) {
    nn::ForwardContext pass;
    pass.tape = &place.tape;
    pass.training = training;
    pass.router_scale = scale();
    pass.routing = report;
    return pass;
  }
  double scale() const { return 1.0 / static_cast<double>(options.batch * options.seq); }

  double evaluate(model::Model& at, nn::RoutingReport* report) {
    fill_tokens(options, 0, batch.inputs, batch.targets);
    const autograd::NoGradGuard no_grad(place.tape);
    nn::ForwardContext one = pass(false, report);
    return tensor::item(at.forward(one, batch, scale()).total.value()) * scale();
  }
};

MoeTraining::MoeTraining(const MoeLabOptions& options, double aux) : impl_(std::make_unique<Impl>(options, aux)) {}
MoeTraining::~MoeTraining() = default;

void MoeTraining::train() {
  Impl& i = *impl_;
  nn::ParameterList& list = i.model->parameters();
  const auto optimizer = optim::make_optimizer({}, list, i.place.context);
  for (int step = 0; step < i.options.steps; ++step) {
    fill_tokens(i.options, i.next_batch++, i.batch.inputs, i.batch.targets);
    list.zero_gradients(i.place.context.stream);
    nn::ForwardContext pass = i.pass(true, nullptr);
    autograd::backward(i.place.tape, i.model->forward(pass, i.batch, i.scale()));
    i.place.tape.clear();
    optimizer->step(i.options.lr, 1);
  }
}

double MoeTraining::loss() {
  return impl_->evaluate(*impl_->model, nullptr);
}

std::vector<ExpertLoads> MoeTraining::loads() {
  nn::RoutingReport report;
  impl_->evaluate(*impl_->model, &report);
  std::vector<ExpertLoads> all;
  for (const auto& layer : report.layers) all.push_back({layer.loads, layer.aux / static_cast<double>(layer.tokens)});
  return all;
}

// Copies the weights into a model with this capacity factor and counts the dropped routing choices.
MoeTraining::CapacityDrops MoeTraining::drops(double factor) {
  Impl& i = *impl_;
  const auto other = model::make_model(config_of(i.options, 0, factor));
  nn::ParameterList &to = other->parameters(), &from = i.model->parameters();
  to.materialize(i.place.context, DType::f32, false);
  for (size_t u = 0; u < to.units().size(); ++u)
    std::memcpy(to.units()[u].values.data(), from.units()[u].values.data(), to.units()[u].values.bytes());
  nn::RoutingReport report;
  i.evaluate(*other, &report);
  nn::MoeOptions layer;
  layer.num_experts = i.options.experts;
  layer.num_chosen = i.options.chosen;
  layer.capacity = factor;
  CapacityDrops drops{factor, nn::expert_capacity(layer, i.options.seq), 0, 0};
  for (const auto& one : report.layers) {
    drops.dropped += one.dropped;
    drops.choices += one.tokens * i.options.chosen;
  }
  return drops;
}

ExpertTraffic measure_expert_traffic(const MoeLabOptions& o, int ranks, bool balanced) {
  nn::MoeOptions layer;
  layer.num_experts = o.experts;
  layer.num_chosen = o.chosen;
  layer.expert.dim = std::max(o.dim, o.experts);
  layer.expert.ffn = o.ffn;
  layer.expert.init = layer.expert.out_init = nn::Init::normal(0.5);
  const int64_t dim = layer.expert.dim, tokens = o.batch * o.seq;
  ExpertTraffic traffic;
  traffic.ranks = ranks;
  traffic.balanced = balanced;
  // Two all-to-alls in forward and two in backward.
  traffic.formula_bytes = 4.0 * (ranks - 1) * static_cast<double>(o.chosen * tokens * dim) * sizeof(float);
  std::mutex mutex;
  net::run_threads(ranks, [&](net::World& world) {
    comm::CommOptions options;
    options.transport = "inproc";
    const auto comm = comm::make_communicator(world, world.world_group(), options);
    const auto exchange =
        parallel::make_token_dispatcher({ranks > 1 ? comm.get() : nullptr, nullptr, nullptr}, kTimeout);
    const ExpertParallelOps regions(*exchange);
    TrainingState place;
    nn::ParameterList list, experts(nn::ModelShards{{}, {comm->rank(), ranks}});
    const nn::Moe moe(list, experts, "mlp", layer);
    for (nn::ParameterList* one : {&list, &experts}) {
      one->materialize(place.context, DType::f32, true);
      one->initialise(o.seed, place.context.stream);
    }
    const Tensor x = tensor::zeros(place.context, {o.batch, o.seq, dim}, DType::f32, MemoryCategory::other);
    if (balanced) {
      // The router reads the first E channels. Token t has its largest values in the channels t, t + 1, … t + k − 1
      // (mod E).
      Tensor& w = list.find("mlp.router.weight").weight.value;
      std::fill_n(w.as<float>(), w.count(), 0.0f);
      for (int64_t e = 0; e < o.experts; ++e) w.as<float>()[e * o.experts + e] = 1;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t j = 0; j < o.chosen; ++j)
          x.as<float>()[t * dim + (t + j) % o.experts] = static_cast<float>(o.chosen - j);
    } else {
      kernel::fill_normal(x.data(), 0, 1, o.seed, 100 + static_cast<uint64_t>(comm->rank()), 0, x.count(), DType::f32,
                          place.context.stream);
    }
    nn::ForwardContext pass;
    pass.tape = &place.tape;
    pass.ops = &regions;
    const autograd::Variable y = moe(pass, place.tape.leaf(x));
    place.tape.seed(y, x);
    place.tape.backward();
    place.tape.clear();
    const std::lock_guard lock(mutex);
    for (const comm::CallStats& s : comm->stats()) {
      if (s.op == comm::Op::all_to_all) traffic.integer_bytes += s.bytes_sent;
      if (s.op != comm::Op::all_to_all_v) continue;
      traffic.counted_bytes += s.bytes_sent;
      traffic.calls = s.calls;
    }
  });
  return traffic;
}

}  // namespace esp::app
