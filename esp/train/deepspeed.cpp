#include "esp/train/deepspeed.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "esp/base/error.h"
#include "esp/base/json.h"
#include "esp/train/deepspeed_source.h"

namespace esp::train {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

std::string in_quotes(std::string_view text) {
  // TOML has the escapes of JSON, but also requires an escape for DEL.
  std::string quoted = nlohmann::json(text).dump();
  for (size_t at; (at = quoted.find('\x7f')) != std::string::npos;) quoted.replace(at, 1, "\\u007f");
  return quoted;
}

// Imports one file. Each member function imports one section of it.
class Importer {
 public:
  Importer(const Json& file, std::string_view name, int64_t ranks) : source_(file, name), ranks_(ranks) {}

  DeepSpeedImport run() {
    precision();
    const int64_t stage = zero();
    batches();
    optimizer(stage);
    scheduler();
    rest();
    source_.ignore_unread(to_);
    to_.missing.emplace_back("model.preset, or the shape of the model in [model]");
    to_.missing.emplace_back("data.train");
    return std::move(to_);
  }

 private:
  void import_key(std::string_view from, std::string_view key, std::string value, std::string_view note = "") {
    to_.keys.push_back({std::string(from), std::string(key), std::move(value), std::string(note)});
  }
  void ignore_key(std::string_view from, std::string why) {
    to_.ignored.push_back({std::string(from), std::move(why)});
  }
  static std::string text_of(double value) {
    const std::string text = fmt::format("{}", value);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  }

  void precision() {
    const bool fp16 = source_.flag("fp16.enabled", "train.precision", to_).value_or(false);
    bool bf16 = source_.flag("bf16.enabled", "train.precision", to_).value_or(false);
    const bool old = source_.flag("bfloat16.enabled", "train.precision", to_).value_or(false);
    if (fp16 && (bf16 || old))
      throw UsageError(fmt::format("{}: got fp16.enabled = true, bf16.enabled = true; expected at most one of them",
                                   source_.name()));
    bf16 = bf16 || old;
    if (fp16) import_key("fp16.enabled", "train.precision", "\"fp16\"", "fp32 master weights, dynamic loss scale");
    if (bf16)
      import_key(old ? "bfloat16.enabled" : "bf16.enabled", "train.precision", "\"bf16\"", "fp32 master weights");
    bytes_ = fp16 || bf16 ? 2 : 4;
  }

  // train_batch_size = train_micro_batch_size_per_gpu × gradient_accumulation_steps × ranks. If two of the first three
  // are given, the third is computed.
  void batches() {
    const auto global = source_.at_least(1, "train_batch_size", "train.global_batch", to_);
    auto micro = source_.at_least(1, "train_micro_batch_size_per_gpu", "train.micro_batch", to_);
    const auto steps = source_.at_least(1, "gradient_accumulation_steps", "train.micro_batch", to_);
    constexpr int64_t kMost = int64_t{1} << 30;
    if (global.value_or(1) > kMost || micro.value_or(1) > kMost || steps.value_or(1) > kMost)
      throw UsageError(
          fmt::format("{}: got a batch of more than 2^30 sequences; expected at most 2^30", source_.name()));
    const double num_ranks = static_cast<double>(ranks_);
    const double product = static_cast<double>(micro.value_or(1)) * static_cast<double>(steps.value_or(1)) * num_ranks;
    if (global && micro && steps && ranks_ > 0 && static_cast<double>(*global) != product)
      throw UsageError(
          fmt::format("{}: train_batch_size: got {}; expected {} × {} × {} (micro-batch × accumulation × ranks)",
                      source_.name(), *global, *micro, *steps, ranks_));
    if (global) {
      import_key("train_batch_size", "train.global_batch", fmt::to_string(*global));
    } else if (micro && ranks_ > 0 && product < static_cast<double>(kMost)) {
      import_key("train_micro_batch_size_per_gpu", "train.global_batch", fmt::to_string(static_cast<int64_t>(product)),
                 fmt::format("{} × {} × {} ranks", *micro, steps.value_or(1), ranks_));
    } else {
      to_.missing.push_back(micro
                                ? fmt::format("train.global_batch: {} × the number of ranks; --ranks sets that number",
                                              *micro * steps.value_or(1))
                                : std::string("train.global_batch"));
    }
    if (micro) {
      import_key("train_micro_batch_size_per_gpu", "train.micro_batch", fmt::to_string(*micro));
    } else if (global && steps) {
      const int64_t parts = *steps * std::max<int64_t>(ranks_, 1);
      if (ranks_ == 0 && *steps > 1) {
        to_.missing.push_back(
            fmt::format("train.micro_batch: {} steps of accumulation; --ranks sets the number of ranks", *steps));
      } else if (*steps > 1 && *global % parts == 0) {
        import_key("gradient_accumulation_steps", "train.micro_batch", fmt::to_string(*global / parts));
      } else if (*steps > 1) {
        throw UsageError(
            fmt::format("{}: train_batch_size: got {}; expected a multiple of {} × {} (accumulation × ranks)",
                        source_.name(), *global, *steps, ranks_));
      }
    }
  }

  int64_t zero() {
    const std::string z = "zero_optimization.";
    const int64_t stage = source_.integer(z + "stage", "sync.method", to_).value_or(0);
    if (stage < 0 || stage > 3) source_.throw_bad_value(z + "stage", "0 to 3", Json(stage));
    if (stage > 0) import_key(z + "stage", "sync.method", fmt::format("\"zero{}\"", stage));
    if (const auto size = source_.at_least(1, z + "reduce_bucket_size", "sync.bucket_mb", to_))
      import_key(z + "reduce_bucket_size", "sync.bucket_mb", text_of(static_cast<double>(*size * bytes_) / 0x1p20),
                 fmt::format("{} elements of {} bytes", *size, bytes_));
    if (source_.flag(z + "overlap_comm", "nothing", to_) == false)
      ignore_key(z + "overlap_comm", "gradients are always reduced during backward");
    offload(stage);
    if (const auto size = source_.integer(z + "mics_shard_size", "sync.group", to_); size.value_or(-1) > 0)
      import_key(z + "mics_shard_size", "sync.group", fmt::to_string(*size));
    std::string quantise;
    const auto part = [&](bool there, std::string_view key, std::string_view name) {
      if (!there) return;
      if (stage != 3) return ignore_key(z + std::string(key), "ZeRO++ needs stage 3");
      quantise += (quantise.empty() ? "" : ",") + std::string(name);
    };
    part(source_.flag(z + "zero_quantized_weights", "sync.quantise", to_).value_or(false), "zero_quantized_weights",
         "qwz");
    part(source_.integer(z + "zero_hpz_partition_size", "sync.quantise", to_).value_or(1) > 1,
         "zero_hpz_partition_size", "hpz");
    part(source_.flag(z + "zero_quantized_gradients", "sync.quantise", to_).value_or(false), "zero_quantized_gradients",
         "qgz");
    if (!quantise.empty())
      import_key(z + "zero_quantized_weights …", "sync.quantise", in_quotes(quantise),
                 "comm.nodes sets the number of hosts");
    return stage;
  }

  // Maps DeepSpeed's offload device ("none", "cpu" or "nvme") to none, host or file.
  std::string offload_device(const std::string& section, const std::string& old_flag, std::string_view ours) {
    const std::string device = source_.text(section + ".device", ours, to_).value_or("none");
    const auto path = source_.text(section + ".nvme_path", "sync.offload_dir", to_);
    if (source_.flag(old_flag, ours, to_).value_or(false)) return "host";
    if (device == "none") return "none";
    if (device == "cpu") return "host";
    if (device != "nvme") source_.throw_bad_value(section + ".device", "none, cpu or nvme", Json(device));
    if (path && !path->empty() && offload_dir_.empty()) {
      offload_dir_ = *path;
      import_key(section + ".nvme_path", "sync.offload_dir", in_quotes(*path));
    }
    return "file";
  }

  void offload(int64_t stage) {
    const std::string z = "zero_optimization.";
    const std::string state = offload_device(z + "offload_optimizer", z + "cpu_offload", "sync.offload");
    const std::string values = offload_device(z + "offload_param", z + "cpu_offload_params", "sync.offload_params");
    if (state != "none") import_key(z + "offload_optimizer.device", "sync.offload", in_quotes(state));
    if (values == "none") return;
    if (stage != 3) return ignore_key(z + "offload_param", "parameters are offloaded in stage 3 only");
    if (state == "none")
      import_key(z + "offload_param.device", "sync.offload", in_quotes(values),
                 "parameters are offloaded together with the optimizer state");
    import_key(z + "offload_param.device", "sync.offload_params", in_quotes(values));
  }

  void optimizer(int64_t stage) {
    const auto type = source_.text("optimizer.type", "train.optimizer", to_);
    if (!type) {
      to_.missing.emplace_back(
          "train.optimizer, lr, beta1, beta2, weight_decay: the training script creates the optimizer");
      return;
    }
    std::string name = *type;
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::string p = "optimizer.params.";
    const bool onebit = name == "onebitadam";
    const bool adam = name == "adam" || name == "adamw" || onebit || name == "fusedadam" || name == "deepspeedcpuadam";
    if (!adam && name != "sgd") {
      ignore_key("optimizer", fmt::format("{} is not supported; use adamw, adam or sgd", *type));
      to_.missing.emplace_back("train.optimizer and its lr");
      for (const char* key : {"lr", "betas", "eps", "weight_decay", "momentum"}) source_.find(p + key, "train.lr", to_);
      return;
    }
    // DeepSpeed's Adam decays weights like AdamW unless adam_w_mode is false.
    const bool decoupled = name == "adamw" || source_.flag(p + "adam_w_mode", "train.optimizer", to_).value_or(true);
    const std::string ours = !adam ? "sgd" : decoupled ? "adamw" : "adam";
    import_key("optimizer.type", "train.optimizer", in_quotes(ours), ours == name ? "" : *type);
    lr_ = source_.number(p + "lr", "train.lr", to_);
    if (lr_ && *lr_ <= 0) source_.throw_bad_value(p + "lr", "more than 0", Json(*lr_));
    number_or(p + "weight_decay", "train.weight_decay", 0.0, "matrices only; norms and biases do not decay");
    if (adam) {
      betas();
      number_or(p + "eps", "train.eps", 1e-8);
    } else {
      number_or(p + "momentum", "train.momentum", 0.0);
      if (source_.flag(p + "nesterov", "train.nesterov", to_).value_or(false))
        import_key(p + "nesterov", "train.nesterov", "true");
    }
    if (!onebit) return;
    const auto freeze = source_.at_least(0, p + "freeze_step", "sync.onebit_warmup", to_);
    if (stage > 0)
      return ignore_key("optimizer.type",
                        "OneBitAdam compresses only with sync.method = \"allreduce\"; imported as Adam");
    import_key("optimizer.type", "sync.compress", "\"sign\"");
    import_key("optimizer.type", "sync.feedback", "\"onebit_adam\"");
    if (freeze) import_key(p + "freeze_step", "sync.onebit_warmup", fmt::to_string(*freeze));
  }

  void betas() {
    const std::string key = "optimizer.params.betas";
    const Json* list = source_.find(key, "train.beta1 and beta2", to_);
    if (list && (!list->is_array() || list->size() != 2 || !(*list)[0].is_number() || !(*list)[1].is_number()))
      source_.throw_bad_value(key, "two numbers", *list);
    import_key(list ? key : "", "train.beta1", text_of(list ? (*list)[0].get<double>() : 0.9));
    import_key(list ? key : "", "train.beta2", text_of(list ? (*list)[1].get<double>() : 0.999));
  }

  // Imports a number from the file; if it is missing, DeepSpeed's default.
  void number_or(const std::string& from, std::string_view key, double otherwise, std::string_view note = "") {
    const auto value = source_.number(from, key, to_);
    import_key(value ? from : "", key, text_of(value.value_or(otherwise)), note);
  }

  void scheduler() {
    const std::string p = "scheduler.params.";
    const std::string type = source_.text("scheduler.type", "train.schedule", to_).value_or("");
    const bool decays = type == "WarmupDecayLR", cosine = type == "WarmupCosineLR";
    if (!type.empty() && type != "WarmupLR" && !decays && !cosine) {
      ignore_key("scheduler",
                 fmt::format("{} is not supported; train.schedule is constant, linear, cosine or wsd", type));
    } else if (type.empty()) {
      import_key("", "train.schedule", "\"constant\"",
                 "no scheduler: the learning rate is constant, unless the training script changes it");
    } else {
      import_key("scheduler.type", "train.schedule",
                 decays   ? "\"linear\""
                 : cosine ? "\"cosine\""
                          : "\"constant\"",
                 type);
      const auto peak = cosine ? std::nullopt : source_.number(p + "warmup_max_lr", "train.lr", to_);
      if (peak && *peak > 0) lr_ = peak;
      const auto warmup = source_.at_least(0, p + "warmup_num_steps", "train.warmup", to_);
      import_key(warmup ? p + "warmup_num_steps" : "", "train.warmup", fmt::to_string(warmup.value_or(1000)),
                 "linear warm-up");
      total_ = source_.at_least(0, p + "total_num_steps", "train.steps", to_);
      if (total_ && *total_ < warmup.value_or(1000))
        throw UsageError(fmt::format("{}: warmup_num_steps: got {}; expected at most total_num_steps = {}",
                                     source_.name(), warmup.value_or(1000), *total_));
      if (decays) import_key("scheduler.type", "train.lr_floor", "0.0");
      if (cosine) number_or(p + "cos_min_ratio", "train.lr_floor", 1e-4);
    }
    if (lr_)
      import_key(type.empty() || type == "WarmupCosineLR" ? "optimizer.params.lr" : p + "warmup_max_lr", "train.lr",
                 text_of(*lr_));
    if (total_)
      import_key(p + "total_num_steps", "train.steps", fmt::to_string(*total_));
    else
      to_.missing.emplace_back("train.steps");
  }

  void rest() {
    number_or("gradient_clipping", "train.clip", 0.0);
    if (const auto every = source_.at_least(1, "steps_per_print", "log.every", to_))
      import_key("steps_per_print", "log.every", fmt::to_string(*every));
    if (const auto seed = source_.at_least(0, "seed", "run.seed", to_))
      import_key("seed", "run.seed", fmt::to_string(*seed));
    if (const auto on = source_.flag("tensorboard.enabled", "log.tensorboard", to_))
      import_key("tensorboard.enabled", "log.tensorboard", *on ? "true" : "false");
    if (const auto wire = source_.text("communication_data_type", "sync.wire", to_)) {
      static constexpr std::pair<std::string_view, std::string_view> kWires[] = {
          {"fp16", "\"fp16\""}, {"bf16", "\"bf16\""}, {"bfp16", "\"bf16\""}, {"fp32", "\"fp32\""}};
      const auto row =
          std::find_if(std::begin(kWires), std::end(kWires), [&](const auto& r) { return r.first == *wire; });
      if (row == std::end(kWires))
        source_.throw_bad_value("communication_data_type", "fp16, bf16 or fp32", Json(*wire));
      import_key("communication_data_type", "sync.wire", std::string(row->second));
    }
    if (const auto size = source_.at_least(1, "tensor_parallel.autotp_size", "parallel.tp", to_); size.value_or(1) > 1)
      import_key("tensor_parallel.autotp_size", "parallel.tp", fmt::to_string(*size));
    if (const auto size = source_.at_least(1, "sequence_parallel_size", "parallel.cp", to_); size.value_or(1) > 1) {
      import_key("sequence_parallel_size", "parallel.cp", fmt::to_string(*size));
      import_key("sequence_parallel_size", "parallel.context", "\"ulysses\"");
    }
  }

  DeepSpeedSource source_;
  int64_t ranks_, bytes_ = 4;
  std::optional<double> lr_;
  std::optional<int64_t> total_;
  std::string offload_dir_;
  DeepSpeedImport to_;
};

}  // namespace

DeepSpeedImport import_deepspeed(std::string_view json, std::string_view name, int64_t ranks) {
  const Json file = parse_json(json, name, kMaxBytes);
  if (!file.is_object()) throw UsageError(fmt::format("{}: expected a JSON object", name));
  return Importer(file, name, ranks).run();
}

}  // namespace esp::train
