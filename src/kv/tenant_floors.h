// TenantFloors: so many cached blocks that a tenant keeps, whatever others bring. Counts the blocks of each
// tenant, and holds those that the policy chose although their tenant has no more than its floor ("aside").
// Invariant: a block is aside only while it is a candidate; of a tenant that rises above its floor one block
// returns for each that comes. O(1), but for Yield, which looks at every tenant; nothing allocates after
// construction.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cachalot {

inline constexpr int32_t kMaxKvTenants = 256;  // more share a count

class TenantFloors {
 public:
  // floor_blocks 0: nobody has a floor.
  TenantFloors(int32_t num_blocks, int32_t floor_blocks)
      : floor_(floor_blocks), links_(static_cast<size_t>(floor_blocks > 0 ? num_blocks : 0)) {}

  void Add(int32_t tenant) { ++At(tenant).num_blocks; }
  void Remove(int32_t tenant) { --At(tenant).num_blocks; }
  bool IsProtected(int32_t tenant) const {
    return tenants_[static_cast<size_t>(tenant)].num_blocks <= floor_;
  }

  bool IsAside(int32_t block) const { return floor_ > 0 && links_[static_cast<size_t>(block)].aside; }
  void PutAside(int32_t block, int32_t tenant) {
    Tenant& of = At(tenant);
    links_[static_cast<size_t>(block)] = {.older = of.newest, .newer = kNone, .aside = true};
    (of.newest == kNone ? of.oldest : links_[static_cast<size_t>(of.newest)].newer) = block;
    of.newest = block;
  }
  void TakeBack(int32_t block, int32_t tenant) {
    Tenant& of = At(tenant);
    Link& link = links_[static_cast<size_t>(block)];
    (link.older == kNone ? of.oldest : links_[static_cast<size_t>(link.older)].newer) = link.newer;
    (link.newer == kNone ? of.newest : links_[static_cast<size_t>(link.newer)].older) = link.older;
    link = {};
  }
  // The block of `tenant` that was put aside first, or -1.
  int32_t OldestAside(int32_t tenant) const { return tenants_[static_cast<size_t>(tenant)].oldest; }
  // Everybody stands at the floor: of whoever has most, and has something aside; or -1.
  int32_t Yield() const {
    const Tenant* most = nullptr;
    for (const Tenant& tenant : tenants_) {
      if (tenant.oldest != kNone && (most == nullptr || tenant.num_blocks > most->num_blocks)) most = &tenant;
    }
    return most == nullptr ? kNone : most->oldest;
  }
  void Clear() {
    tenants_.fill({});
    std::fill(links_.begin(), links_.end(), Link{});
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Tenant {
    int32_t num_blocks = 0;
    int32_t oldest = kNone, newest = kNone;  // aside
  };
  struct Link {
    int32_t older = kNone, newer = kNone;
    bool aside = false;
  };
  Tenant& At(int32_t tenant) { return tenants_[static_cast<size_t>(tenant)]; }

  const int32_t floor_;
  std::array<Tenant, kMaxKvTenants> tenants_ = {};
  std::vector<Link> links_;  // [blocks]
};

}  // namespace cachalot
