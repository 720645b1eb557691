#include "esp/plan/search/plan_problem.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/parallel/pp/partition.h"

namespace esp::plan {
namespace {

constexpr size_t at(PlanAxis axis) {
  return static_cast<size_t>(axis);
}

template <typename T, typename Name>
Axis axis_of(std::string name, const std::vector<T>& values, Name&& word) {
  Axis axis{std::move(name), {}};
  for (const T& one : values) axis.values.push_back(word(one));
  return axis;
}

// Multiplications and additions of a step at least: every parameter a token meets thrice, and causal attention's half.
double least_flops(const Shape& shape, int64_t global_batch) {
  const double tokens = static_cast<double>(global_batch) * static_cast<double>(shape.seq);
  double flops = 6 * (shape.active_parameters() - shape.embedding_parameters()) * tokens;
  if (shape.arch != "any" && shape.kv_lora == 0)
    flops +=
        6 * static_cast<double>(shape.layers * shape.heads * shape.head_dim) * static_cast<double>(shape.seq) * tokens;
  return flops;
}

std::vector<int> equal_layers(int64_t layers, int pieces) {
  std::vector<int> sizes(static_cast<size_t>(pieces), static_cast<int>(layers / pieces));
  for (int64_t i = 0; i < layers % pieces; ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

}  // namespace

PlanProblem::PlanProblem(Shape shape, Cluster cluster, Space space, const Objective& objective)
    : shape_(std::move(shape)), cluster_(std::move(cluster)), space_(std::move(space)), objective_(objective) {
  const auto number = [](auto n) { return fmt::format("{}", n); };
  const auto yes_no = [](int n) { return std::string(n ? "true" : "false"); };
  const auto word = [](const std::string& s) { return s; };
  const auto named = [](const auto& one) { return name_of(one); };
  axes_ = {axis_of("gpus", space_.gpus, number),
           axis_of("tp", space_.tp, number),
           axis_of("cp", space_.cp, number),
           axis_of("pp", space_.pp, number),
           axis_of("ep", space_.ep, number),
           axis_of("sequence", space_.sequence, yes_no),
           axis_of("context", space_.context, word),
           axis_of("zero", space_.zero, number),
           axis_of("offload", space_.offload, named),
           axis_of("recompute", space_.recompute, named),
           axis_of("micro_batch", space_.micro_batch, number),
           axis_of("schedule", space_.schedule, named),
           axis_of("division", space_.division, [](int n) { return std::string(n ? "balanced" : "equal"); })};
  for (const int gpus : space_.gpus) clusters_.push_back(cluster_of(cluster_, gpus));
  if (cluster_.processor.kind == "gpu") {
    best_rate_ = cluster_.processor.flops(space_.base.precision);
    work_ = least_flops(shape_, space_.base.global_batch);
  }
}

Policy PlanProblem::policy_at(const Choice& choice, size_t num_set) const {
  Policy policy = space_.base;
  const auto set = [&](PlanAxis axis) { return at(axis) < num_set; };
  const auto index = [&](PlanAxis axis) { return static_cast<size_t>(choice[at(axis)]); };
  policy.tp = set(PlanAxis::tp) ? space_.tp[index(PlanAxis::tp)] : 1;
  policy.cp = set(PlanAxis::cp) ? space_.cp[index(PlanAxis::cp)] : 1;
  policy.pp = set(PlanAxis::pp) ? space_.pp[index(PlanAxis::pp)] : 1;
  policy.ep = set(PlanAxis::ep) ? space_.ep[index(PlanAxis::ep)] : 1;
  policy.dp = std::max(1, space_.gpus[index(PlanAxis::gpus)] / (policy.tp * policy.cp * policy.pp));
  policy.sequence = set(PlanAxis::sequence) && space_.sequence[index(PlanAxis::sequence)] != 0;
  policy.context = set(PlanAxis::context) ? space_.context[index(PlanAxis::context)] : space_.context.front();
  policy.zero = set(PlanAxis::zero) ? space_.zero[index(PlanAxis::zero)] : space_.zero.front();
  policy.offload = set(PlanAxis::offload) ? space_.offload[index(PlanAxis::offload)] : Offload::none;
  policy.recompute = set(PlanAxis::recompute) ? space_.recompute[index(PlanAxis::recompute)] : space_.recompute.front();
  policy.micro_batch =
      set(PlanAxis::micro_batch) ? space_.micro_batch[index(PlanAxis::micro_batch)] : space_.micro_batch.front();
  const ScheduleChoice neutral;
  const ScheduleChoice& schedule = set(PlanAxis::schedule) ? space_.schedule[index(PlanAxis::schedule)] : neutral;
  policy.schedule = schedule.name;
  policy.interleave = schedule.interleave;
  policy.stage_layers.clear();
  if (set(PlanAxis::division) && space_.division[index(PlanAxis::division)] != 0) policy.stage_layers = divided(choice);
  return policy;
}

bool PlanProblem::allowed(const Choice& choice, size_t num_set) const {
  const auto last = static_cast<PlanAxis>(num_set - 1);
  const auto index = [&](PlanAxis axis) { return static_cast<size_t>(choice[at(axis)]); };
  const int gpus = space_.gpus[index(PlanAxis::gpus)];
  const int tp = num_set > at(PlanAxis::tp) ? space_.tp[index(PlanAxis::tp)] : 1;
  const int cp = num_set > at(PlanAxis::cp) ? space_.cp[index(PlanAxis::cp)] : 1;
  const int pp = num_set > at(PlanAxis::pp) ? space_.pp[index(PlanAxis::pp)] : 1;
  const int64_t group = static_cast<int64_t>(tp) * cp * pp;
  // What is cheap to see and ends most branches; the rules proper follow.
  switch (last) {
    case PlanAxis::gpus:
      return true;
    case PlanAxis::tp:
    case PlanAxis::cp:
      return gpus % group == 0;
    case PlanAxis::pp: {
      if (gpus % group != 0 || space_.base.global_batch % (gpus / group) != 0) return false;
      break;
    }
    case PlanAxis::ep:
      break;
    case PlanAxis::sequence:
      if (tp == 1) return index(last) == 0 || space_.sequence[index(last)] == 0;
      return true;  // its rule counts the rows of a micro-batch
    case PlanAxis::context:
      return cp > 1 ? true : index(last) == 0;
    case PlanAxis::zero:
      return gpus / (tp * pp) > 1 || index(last) == 0;
    case PlanAxis::offload:
    case PlanAxis::recompute:
      return true;
    case PlanAxis::micro_batch: {
      const int64_t share = space_.base.global_batch / (gpus / group);
      if (share % space_.micro_batch[index(last)] != 0) return false;
      break;
    }
    case PlanAxis::schedule:
      if (pp == 1) return index(last) == 0;
      break;
    case PlanAxis::division:
      if (space_.division[index(last)] == 0) return true;
      if (pp == 1) return space_.division.size() == 1;
      // Where both are the same, equal is its name.
      if (space_.division.size() > 1) {
        const int pieces = pp * space_.schedule[index(PlanAxis::schedule)].interleave;
        if (divided(choice) == equal_layers(shape_.layers, pieces)) return false;
      }
      break;
  }
  return !broken(shape_, cluster_at(choice), policy_at(choice, num_set));
}

Terms PlanProblem::terms(const Choice& choice, double time_s, double memory_bytes) const {
  return {time_s, memory_bytes, static_cast<double>(space_.gpus[choice[0]]), cluster_.processor.price_per_hour, 1};
}

double PlanProblem::work_floor_s(const Choice& choice, size_t num_set) const {
  if (best_rate_ == 0 || num_set == 0) return 0;
  double flops = work_;
  if (num_set > at(PlanAxis::recompute) && space_.base.recompute_layers < 0 &&
      space_.recompute[choice[at(PlanAxis::recompute)]] == Recompute::full)
    flops *= 4.0 / 3 * 0.9;  // a forward more, of layers but not of the head
  double bubble = 0;
  if (num_set > at(PlanAxis::schedule)) {
    const ScheduleChoice& schedule = space_.schedule[choice[at(PlanAxis::schedule)]];
    const double pp = space_.pp[choice[at(PlanAxis::pp)]];
    if (schedule.name == "1f1b" || schedule.name == "gpipe" || schedule.name == "interleaved") {
      const Policy policy = policy_at(choice, at(PlanAxis::schedule));
      bubble = (pp - 1) / (static_cast<double>(policy.num_micro_batches()) * schedule.interleave);
    }
  }
  return flops / (best_rate_ * space_.gpus[choice[0]]) * (1 + bubble);
}

Worth PlanProblem::floor(const Choice& choice, size_t num_set, double memory_bytes) const {
  double time_s = work_floor_s(choice, num_set);
  if (num_set == num_axes()) time_s = std::max(time_s, lower_bound_s(shape_, cluster_at(choice), policy_at(choice)));
  return {objective_.value(terms(choice, time_s, memory_bytes)), time_s};
}

Weight PlanProblem::weigh(const Choice& choice) const {
  const double bytes = memory_of(shape_, cluster_at(choice), policy_at(choice)).total();
  return {bytes, capacity() == 0 || bytes <= capacity(), capacity() == 0 ? 0 : bytes / capacity() - 1};
}

bool PlanProblem::too_heavy(const Choice& choice, size_t num_set) const {
  // States are known once ZeRO and offload are; the mean over the stages is no more than the worst, however layers lie.
  if (num_set != at(PlanAxis::offload) + 1 || capacity() == 0) return false;
  const std::vector<Memory> stages = stage_memories(shape_, cluster_at(choice), policy_at(choice, num_set));
  double sum = 0;
  for (const Memory& stage : stages) sum += stage.states();
  return !stages.empty() && sum / static_cast<double>(stages.size()) > capacity();
}

Estimate PlanProblem::estimate_at(const Choice& choice) const {
  return estimate(shape_, cluster_at(choice), policy_at(choice));
}

Worth PlanProblem::worth(const Choice& choice) const {
  const Policy policy = policy_at(choice);
  const Cluster& cluster = cluster_at(choice);
  const Estimate all = estimate(shape_, cluster, policy);
  Terms of = terms(choice, all.step_s, all.memory.total());
  if (objective_.by_goodput) {
    const double tokens = static_cast<double>(policy.global_batch * shape_.seq);
    of.goodput = cost_of(all, cluster, policy, shape_, tokens).goodput;
  }
  return {objective_.value(of), all.step_s};
}

const std::vector<double>& PlanProblem::layer_times(const Choice& choice) const {
  Choice key = choice;  // what a layer's time does not depend on
  for (const PlanAxis axis : {PlanAxis::pp, PlanAxis::zero, PlanAxis::offload, PlanAxis::schedule, PlanAxis::division})
    key[at(axis)] = 0;
  const std::lock_guard lock(mutex_);
  const auto known = layer_times_.find(key);
  if (known != layer_times_.end()) return known->second;
  Policy policy = policy_at(choice, at(PlanAxis::schedule));
  policy.pp = static_cast<int>(shape_.layers);
  policy.zero = 0;
  policy.offload = Offload::none;
  std::vector<double> times;
  for (const StageTime& one : stage_times(shape_, cluster_at(choice), policy))
    times.push_back(one.forward + one.backward + one.weights);
  return layer_times_.emplace(key, std::move(times)).first->second;
}

std::vector<int> PlanProblem::divided(const Choice& choice) const {
  const int pieces = space_.pp[choice[at(PlanAxis::pp)]] * space_.schedule[choice[at(PlanAxis::schedule)]].interleave;
  const std::vector<double>& times = layer_times(choice);
  if (static_cast<size_t>(pieces) > times.size()) return equal_layers(shape_.layers, pieces);
  Choice key = choice;
  for (const PlanAxis axis : {PlanAxis::pp, PlanAxis::zero, PlanAxis::offload, PlanAxis::schedule, PlanAxis::division})
    key[at(axis)] = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto known = divisions_.find({key, pieces});
    if (known != divisions_.end()) return known->second;
  }
  const std::vector<int> cuts = parallel::linear_partition(times, pieces);
  std::vector<int> sizes;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) sizes.push_back(cuts[i + 1] - cuts[i]);
  const std::lock_guard lock(mutex_);
  return divisions_.emplace(std::pair(key, pieces), std::move(sizes)).first->second;
}

double PlanProblem::divided_floor(const Choice& choice, double memory_bytes) const {
  return floor(choice, num_axes(), memory_bytes).value;
}

std::string PlanProblem::text_of(const Choice& choice) const {
  const Policy policy = policy_at(choice);
  std::string text = fmt::format("dp={}", policy.dp);
  for (const PlanAxis axis : {PlanAxis::tp, PlanAxis::pp, PlanAxis::cp, PlanAxis::ep, PlanAxis::zero})
    if (const std::string& value = axes_[at(axis)].values[choice[at(axis)]];
        value != (axis == PlanAxis::zero ? "0" : "1"))
      text += fmt::format(" {}={}", axes_[at(axis)].name, value);
  text += fmt::format(" micro_batch={}", policy.micro_batch);
  if (policy.pp > 1) text += " schedule=" + name_of(space_.schedule[choice[at(PlanAxis::schedule)]]);
  if (!policy.stage_layers.empty()) text += " division=balanced";
  if (policy.sequence) text += " sequence=true";
  if (policy.cp > 1) text += " context=" + policy.context;
  if (policy.recompute != Recompute::none) text += " recompute=" + name_of(policy.recompute);
  if (policy.offload != Offload::none) text += " offload=" + name_of(policy.offload);
  if (space_.gpus.size() > 1) text += fmt::format(" gpus={}", policy.world());
  return text;
}

}  // namespace esp::plan
