// How this CPU fetches ahead what is read in order.
#pragma once

namespace cachalot {

// Whether a core reads fastest as one stream that the processor itself follows (AMD from Zen 4 on; later ones are taken
// to be alike). What is best elsewhere: kernels/matmul/codes_tile.h.
bool FollowsOneStream();

// Says so (or not) from now on, for tests of the kernels on any CPU; returns what was said before.
bool SetFollowsOneStreamForTesting(bool follows);

}  // namespace cachalot
