#include "esp/plan/search/plan_problem.h"

#include <algorithm>

#include <fmt/format.h>

#include "esp/plan/espalier_time.h"
#include "esp/plan/pipeline_time.h"
#include "esp/plan/states.h"

namespace esp::plan {
namespace {

constexpr size_t at(PlanAxis axis) {
  return static_cast<size_t>(axis);
}

template <typename T, typename Name>
SearchAxis axis_of(std::string name, const std::vector<T>& values, Name&& word) {
  SearchAxis axis{std::move(name), {}};
  for (const T& one : values) axis.values.push_back(word(one));
  return axis;
}

}  // namespace

PlanProblem::PlanProblem(ModelShape shape, Cluster cluster, SearchSpace space, const SearchObjective& objective)
    : shape_(std::move(shape)),
      cluster_(std::move(cluster)),
      space_(std::move(space)),
      objective_(objective),
      calibrated_(uses_calibrated_rates(cluster_, space_.base)),
      rates_(shape_, resize_cluster(cluster_, *std::max_element(space_.gpus.begin(), space_.gpus.end())), space_) {
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
           axis_of("recompute", space_.recompute, named),
           axis_of("micro_batch", space_.micro_batch, number),
           axis_of("schedule", space_.schedule, named),
           axis_of("division", space_.division, [](int n) { return std::string(n ? "balanced" : "equal"); }),
           axis_of("zero", space_.zero, number),
           axis_of("offload", space_.offload, named)};
  for (const int gpus : space_.gpus) clusters_.push_back(resize_cluster(cluster_, gpus));
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
  policy.offload = set(PlanAxis::offload) ? space_.offload[index(PlanAxis::offload)] : OffloadTarget::none;
  policy.recompute = set(PlanAxis::recompute) ? space_.recompute[index(PlanAxis::recompute)] : space_.recompute.front();
  policy.micro_batch =
      set(PlanAxis::micro_batch) ? space_.micro_batch[index(PlanAxis::micro_batch)] : space_.micro_batch.front();
  const ScheduleChoice neutral;
  const ScheduleChoice& schedule = set(PlanAxis::schedule) ? space_.schedule[index(PlanAxis::schedule)] : neutral;
  policy.schedule = schedule.name;
  policy.interleave = schedule.interleave;
  policy.stage_layers.clear();
  if (set(PlanAxis::division) && space_.division[index(PlanAxis::division)] != 0)
    policy.stage_layers = balanced_layers_at(choice);
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
  // These cheap checks reject most choices. The complete rules are checked below.
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
      return true;  // the rule for sequence parallelism needs the micro-batch size, a later axis
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
      if (pp == 1 && index(last) != 0) return false;
      break;
    case PlanAxis::division:
      if (space_.division[index(last)] == 0) return true;
      if (pp == 1) return space_.division.size() == 1;
      // If the balanced division equals the equal one, only the equal one is allowed.
      if (space_.division.size() > 1) {
        if (balanced_layers_at(choice) == equal_division(choice)) return false;
      }
      break;
  }
  const Policy policy = policy_at(choice, num_set);
  if (policy_error(shape_, cluster_at(choice), policy)) return false;
  return !space_.extra_rule || last != PlanAxis::schedule || space_.extra_rule(policy);
}

ObjectiveTerms PlanProblem::terms(const Choice& choice, double time_s, double memory_bytes) const {
  return {time_s, memory_bytes, static_cast<double>(space_.gpus[choice[0]]), cluster_.processor.price_per_hour, 1};
}

double PlanProblem::pipeline_lower_bound_s(const Choice& choice, double slowest_piece) const {
  const StageTime& sum = rates_.layer_time(choice);
  Policy policy = policy_at(choice, at(PlanAxis::schedule) + 1);
  PipelinePieces pieces = pipeline_pieces(shape_, policy);
  const auto n = static_cast<double>(pieces.count());
  std::vector<StageTime> times(static_cast<size_t>(pieces.count()),
                               {sum.forward / n, sum.backward / n, sum.weights / n, 0});
  const double all = sum.forward + sum.backward + sum.weights;
  if (slowest_piece > all / n && pieces.count() > 1) {
    const double first = slowest_piece / all, rest = (1 - first) / (n - 1);
    for (size_t i = 0; i < times.size(); ++i) {
      const double share = i == 0 ? first : rest;
      times[i] = {sum.forward * share, sum.backward * share, sum.weights * share, 0};
    }
  }
  return pipeline_time(policy, pieces, times).total;
}

double PlanProblem::time_lower_bound_s(const Choice& choice, size_t num_set) const {
  if (calibrated_) return 0;
  if (num_set > at(PlanAxis::schedule)) return pipeline_lower_bound_s(choice, 0);
  return static_cast<double>(space_.base.global_batch) / space_.gpus[choice[0]] * rates_.least_rate(choice, num_set);
}

ChoiceValue PlanProblem::lower_bound(const Choice& choice, size_t num_set, double memory_bytes) const {
  double time_s = time_lower_bound_s(choice, num_set);
  if (num_set == num_axes() && !calibrated_)
    time_s = std::max(time_s, lower_bound_s(shape_, cluster_at(choice), policy_at(choice)));
  return {objective_.value(terms(choice, time_s, memory_bytes)), time_s};
}

double PlanProblem::capacity(const Choice& choice) const {
  const double whole = cluster_.processor.memory_bytes;
  return cluster_.processor.kind == "cpu" ? whole / space_.gpus[choice[0]] * cluster_at(choice).num_nodes : whole;
}

ChoiceMemory PlanProblem::compare_with_capacity(const Choice& choice, double bytes) const {
  const double room = capacity(choice);
  return {bytes, room == 0 || bytes <= room, room == 0 ? 0 : bytes / room - 1};
}

ChoiceMemory PlanProblem::choice_memory(const Choice& choice) const {
  return compare_with_capacity(choice, memory_of(shape_, cluster_at(choice), policy_at(choice)).total());
}

ChoiceMemory PlanProblem::least_memory(const Choice& choice, size_t num_set) const {
  // Once the division is set, the layers and activations of every stage are known. The states are at least those of the
  // most memory-efficient ZeRO stage and offload. Buffers are not counted.
  if (num_set != at(PlanAxis::division) + 1 || calibrated_) return {};
  Policy policy = policy_at(choice, num_set);
  policy.zero = *std::max_element(space_.zero.begin(), space_.zero.end());
  policy.offload = space_.offload.back();
  double bytes = 0;
  for (const Memory& stage : stage_memories(shape_, cluster_at(choice), policy))
    bytes = std::max(bytes, stage.states() + stage.activation);
  return compare_with_capacity(choice, bytes);
}

Estimate PlanProblem::estimate_at(const Choice& choice) const {
  return estimate(shape_, cluster_at(choice), policy_at(choice));
}

ChoiceValue PlanProblem::choice_value(const Choice& choice) const {
  const Policy policy = policy_at(choice);
  const Cluster& cluster = cluster_at(choice);
  const Estimate all = estimate(shape_, cluster, policy);
  ObjectiveTerms of = terms(choice, all.step_s, all.memory.total());
  if (objective_.by_goodput) {
    const double tokens = static_cast<double>(policy.global_batch * shape_.seq);
    of.goodput = cost_of(all, cluster, policy, shape_, tokens).goodput;
  }
  return {objective_.value(of), all.step_s};
}

double PlanProblem::division_lower_bound(const Choice& choice, double memory_bytes) const {
  const ChoiceValue equal = lower_bound(choice, num_axes(), memory_bytes);
  const ScheduleChoice& schedule = space_.schedule[choice[at(PlanAxis::schedule)]];
  if (calibrated_ || space_.pp[choice[at(PlanAxis::pp)]] == 1 || (schedule.name != "1f1b" && schedule.name != "gpipe"))
    return equal.value;
  const double time_s = std::max(equal.time_s, pipeline_lower_bound_s(choice, balanced_slowest_stage_s(choice)));
  return objective_.value(terms(choice, time_s, memory_bytes));
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
  if (policy.recompute != RecomputePolicy::none) text += " recompute=" + name_of(policy.recompute);
  if (policy.offload != OffloadTarget::none) text += " offload=" + name_of(policy.offload);
  if (space_.gpus.size() > 1) text += fmt::format(" gpus={}", policy.world());
  return text;
}

}  // namespace esp::plan
