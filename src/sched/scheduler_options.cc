#include "sched/scheduler_options.h"

#include "spec/draft_source.h"

namespace cachalot {

Status CheckSchedulerOptions(const SchedulerLimits& limits, const SchedulerOptions& options) {
  for (const SchedulerKnob& knob : kSchedulerKnobs) {
    const int32_t value = options.*knob.value;
    if (value < knob.min || value > knob.max) {
      return InvalidArgument("{} is {} {}: must be in {}..{}", knob.name, value, knob.unit, knob.min,
                             knob.max);
    }
  }
  const auto at_least_one = [](std::string_view what, int32_t value) {
    return value >= 1 ? Status::Ok()
                      : InvalidArgument("the executor's {} is {}: must be at least 1", what, value);
  };
  RETURN_IF_ERROR(at_least_one("max_seqs", limits.max_seqs));
  RETURN_IF_ERROR(at_least_one("max_step_tokens", limits.max_step_tokens));
  RETURN_IF_ERROR(at_least_one("max_context", limits.max_context));
  RETURN_IF_ERROR(at_least_one("vocab_size", limits.vocab_size));
  if (limits.depth < 0 || limits.depth > 1) {
    return InvalidArgument("the executor's depth is {}: must be 0 or 1", limits.depth);
  }
  const bool host_drafts = options.drafts == DraftKind::kNone || options.drafts == DraftKind::kNgram;
  if (!host_drafts && options.drafts != limits.device_drafts) {
    return InvalidArgument("drafts '{}': the executor was set up for '{}'", DraftKindName(options.drafts),
                           DraftKindName(limits.device_drafts));
  }
  for (const KvGroupInfo& group : limits.kv_groups) {
    if (group.block_tokens < 1 || group.num_blocks < 1 || group.window < 0) {
      return InvalidArgument(
          "KV group '{}' has {} blocks of {} tokens and a window of {}: at least 1, 1 and 0 are needed",
          group.name, group.num_blocks, group.block_tokens, group.window);
    }
  }
  return Status::Ok();
}

}  // namespace cachalot
