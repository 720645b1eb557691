#include "esp/train/deepspeed_keys.h"

namespace esp::train {
namespace {

struct Row {
  std::string_view name, why;
};

constexpr std::string_view kTorchAmp = "controls the mixed precision of PyTorch; use train.precision";
constexpr std::string_view kScale = "the loss scale is dynamic and has no keys";
constexpr std::string_view kBuffers =
    "affects only buffers of DeepSpeed; Espalier allocates its buffers once and reuses them";
constexpr std::string_view kLive = "whole units are gathered; sync.prefetch sets how many units are prefetched";
constexpr std::string_view kTools = "metrics.jsonl, events/ and trace.json are written by every run";
constexpr std::string_view kHugging = "espalier convert --layout hf writes a folder that transformers loads";

// The row of a section applies to all its keys that do not have their own row.
constexpr Row kIgnoredKeys[] = {
    {"activation_checkpointing", "use train.recompute: selective or full"},
    {"aio", "the file tier tunes itself; see sync.offload_io"},
    {"amp", kTorchAmp},
    {"autotuning", "parallel.layout = \"auto\" asks the planner"},
    {"bf16.bf16_master_weights_and_grads", "the optimizer keeps fp32 values"},
    {"bf16.bf16_optimizer_states", "the optimizer keeps fp32 states"},
    {"bf16.check_grad_overflow", "bf16 has the range of fp32"},
    {"bf16.immediate_grad_update", kBuffers},
    {"checkpoint", "checkpoints are readable by any number of ranks; see checkpoint.every, keep, async"},
    {"comet", kTools},
    {"comms_logger", "ranks/rank-K.json counts every collective"},
    {"compression_training", "not supported: no pruning, no quantised training"},
    {"csv_monitor", kTools},
    {"curriculum_learning", "sequences have a fixed length: model.seq_len"},
    {"data_efficiency", "the order of the data is data.order"},
    {"data_sampling", "the order of the data is data.order"},
    {"data_types.grad_accum_dtype", "micro-batches are accumulated in fp32"},
    {"dataloader_drop_last", "every step has train.global_batch sequences"},
    {"disable_allgather", kBuffers},
    {"dump_state", "run.toml in the run folder is the resolved configuration"},
    {"eigenvalue", "only DeepSpeed's quantised training uses it"},
    {"elasticity", "espalier launch --max-restarts restarts a job; checkpoints are readable by any number of ranks"},
    {"flops_profiler", kTools},
    {"fp16.auto_cast", kTorchAmp},
    {"fp16.consecutive_hysteresis", kScale},
    {"fp16.fp16_master_weights_and_grads", "the optimizer keeps fp32 values"},
    {"fp16.hysteresis", kScale},
    {"fp16.initial_scale_power", kScale},
    {"fp16.loss_scale", kScale},
    {"fp16.loss_scale_window", kScale},
    {"fp16.min_loss_scale", kScale},
    {"fp32_allreduce", "sync.wire = \"fp32\" does this"},
    {"gradient_accumulation_dtype", "micro-batches are accumulated in fp32"},
    {"gradient_predivide_factor", "gradients are summed and divided once"},
    {"hybrid_engine", "not supported: no inference engine"},
    {"inference", "not supported: no inference engine"},
    {"memory_breakdown", "ranks/rank-K.json has memory by category"},
    {"nebula", "checkpoint.async writes in the background"},
    {"optimizer.params.adam_w_mode", "set by train.optimizer: adamw or adam"},
    {"optimizer.params.amsgrad", "not supported by Adam"},
    {"optimizer.params.bias_correction", "Adam always corrects its bias"},
    {"optimizer.params.comm_backend_name", "see comm.transport"},
    {"optimizer.params.cuda_aware", "see comm.transport"},
    {"optimizer.params.foreach", "kernels are fused already"},
    {"optimizer.params.fused", "kernels are fused already"},
    {"optimizer.params.maximize", "losses are minimised"},
    {"optimizer.params.set_grad_none", kBuffers},
    {"optimizer.params.torch_adam", "there is only one Adam implementation"},
    {"pipeline", "see parallel.pp and parallel.schedule"},
    {"prescale_gradients", "gradients are summed and divided once"},
    {"progressive_layer_drop", "not supported: every step trains all layers"},
    {"quantize_training", "not supported: no pruning, no quantised training"},
    {"scheduler.params.warmup_min_lr", "warm-up starts at lr / warmup steps"},
    {"scheduler.params.warmup_min_ratio", "warm-up starts at lr / warmup steps"},
    {"scheduler.params.warmup_type", "warm-up is linear"},
    {"scheduler.params.last_batch_iteration", "a resumed run continues at its step"},
    {"sparse_attention", "attention is dense"},
    {"sparse_gradients", "gradients are dense"},
    {"tensorboard.job_name", "the run's name is run.name"},
    {"tensorboard.output_path", "events/ is in the run folder: run.dir"},
    {"tensor_parallel", "see parallel.tp"},
    {"train_step_per_print", kTools},
    {"use_data_before_expert_parallel_", "see parallel.ep"},
    {"wall_clock_breakdown", "log.trace = true writes a trace"},
    {"wandb", kTools},
    {"weight_quantization", "not supported: no pruning, no quantised training"},
    {"zero_allow_untested_optimizer", "every optimizer works with every stage"},
    {"zero_force_ds_cpu_optimizer", "with sync.offload the host runs the same optimizer"},
    {"zero_optimization.allgather_bucket_size", "parameters are gathered unit by unit"},
    {"zero_optimization.allgather_partitions", "parameters are always gathered by collectives"},
    {"zero_optimization.contiguous_gradients", kBuffers},
    {"zero_optimization.cpu_offload_use_pin_memory", kBuffers},
    {"zero_optimization.elastic_checkpoint", "checkpoints are readable by any number of ranks"},
    {"zero_optimization.grad_hooks", kBuffers},
    {"zero_optimization.ignore_unused_parameters", "every parameter of the models is used"},
    {"zero_optimization.legacy_stage1", kBuffers},
    {"zero_optimization.load_from_fp32_weights", "checkpoints contain fp32 master weights"},
    {"zero_optimization.memory_efficient_linear", "linear layers store only their input"},
    {"zero_optimization.mics_hierarchical_params_gather", "see comm.all_reduce and comm.nodes"},
    {"zero_optimization.model_persistence_threshold", kLive},
    {"zero_optimization.offload_optimizer", "affects only buffers of DeepSpeed; see sync.offload_tile"},
    {"zero_optimization.offload_param", "affects only buffers of DeepSpeed; see sync.offload_tile"},
    {"zero_optimization.override_module_apply", kBuffers},
    {"zero_optimization.param_persistence_threshold", kLive},
    {"zero_optimization.pipeline_loading_checkpoint", "every rank reads only its part of a checkpoint"},
    {"zero_optimization.reduce_scatter", "stages 2 and 3 always reduce-scatter"},
    {"zero_optimization.round_robin_gradients", kBuffers},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", kHugging},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", kHugging},
    {"zero_optimization.stage3_max_live_parameters", kLive},
    {"zero_optimization.stage3_max_reuse_distance", "see sync.keep_gathered"},
    {"zero_optimization.stage3_model_persistence_threshold", kLive},
    {"zero_optimization.stage3_module_granularity_threshold", kLive},
    {"zero_optimization.stage3_param_persistence_threshold", kLive},
    {"zero_optimization.stage3_prefetch_bucket_size", "sync.prefetch counts units, not elements"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", "parameters are always gathered"},
    {"zero_optimization.sub_group_size", "see sync.offload_tile"},
    {"zero_optimization.use_all_reduce_for_fetch_params", "parameters are always gathered"},
    {"zero_optimization.use_multi_rank_bucket_allreduce", kBuffers},
    {"zero_optimization.zero_quantized_nontrainable_weights", "all weights are trained"},
    {"zero_optimization.zeropp_loco_param", "sync.quantise = \"qgz\" has no error feedback"},
};

// The keys that deepspeed.cpp reads. This list is used only to suggest the correct spelling of a key.
constexpr std::string_view kRead[] = {"train_batch_size",
                                      "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps",
                                      "optimizer",
                                      "optimizer.type",
                                      "optimizer.params",
                                      "optimizer.params.lr",
                                      "optimizer.params.betas",
                                      "optimizer.params.eps",
                                      "optimizer.params.weight_decay",
                                      "optimizer.params.momentum",
                                      "optimizer.params.nesterov",
                                      "optimizer.params.freeze_step",
                                      "scheduler",
                                      "scheduler.type",
                                      "scheduler.params",
                                      "scheduler.params.warmup_max_lr",
                                      "scheduler.params.warmup_num_steps",
                                      "scheduler.params.total_num_steps",
                                      "scheduler.params.cos_min_ratio",
                                      "fp16",
                                      "fp16.enabled",
                                      "bf16",
                                      "bf16.enabled",
                                      "bfloat16",
                                      "gradient_clipping",
                                      "zero_optimization",
                                      "zero_optimization.stage",
                                      "zero_optimization.overlap_comm",
                                      "zero_optimization.reduce_bucket_size",
                                      "zero_optimization.offload_optimizer.device",
                                      "zero_optimization.offload_optimizer.nvme_path",
                                      "zero_optimization.offload_param.device",
                                      "zero_optimization.offload_param.nvme_path",
                                      "zero_optimization.cpu_offload",
                                      "zero_optimization.cpu_offload_params",
                                      "zero_optimization.mics_shard_size",
                                      "zero_optimization.zero_hpz_partition_size",
                                      "zero_optimization.zero_quantized_weights",
                                      "zero_optimization.zero_quantized_gradients",
                                      "steps_per_print",
                                      "communication_data_type",
                                      "seed",
                                      "tensorboard",
                                      "tensorboard.enabled",
                                      "sequence_parallel_size",
                                      "tensor_parallel.autotp_size"};

}  // namespace

std::string_view ignore_reason(std::string_view key) {
  for (std::string_view at = key;; at = at.substr(0, at.rfind('.'))) {
    for (const Row& row : kIgnoredKeys)
      if (row.name == at) return row.why;
    if (at.find('.') == std::string_view::npos) return {};
  }
}

std::vector<std::string_view> known_deepspeed_keys() {
  std::vector<std::string_view> names(std::begin(kRead), std::end(kRead));
  for (const Row& row : kIgnoredKeys) names.push_back(row.name);
  return names;
}

}  // namespace esp::train
