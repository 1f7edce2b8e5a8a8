// DraftActivity: the share of steps with drafts, of late. Where it is small a drafter does not read prompts either.
#pragma once

namespace cachalot {

class DraftActivity {
 public:
  void Observe(bool drafted) { share_ += ((drafted ? 1.0 : 0.0) - share_) * kWeight; }
  bool IsActive() const { return share_ >= kActive; }

 private:
  static constexpr double kWeight = 1.0 / 32;
  static constexpr double kActive = 0.25;
  double share_ = 1;
};

}  // namespace cachalot
