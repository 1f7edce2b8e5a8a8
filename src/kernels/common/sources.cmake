list(APPEND KERNEL_TESTS common/cuda_half_copies_test.cc common/exp_avx2_test.cc)
